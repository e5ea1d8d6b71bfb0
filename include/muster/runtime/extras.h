#pragma once

#include "muster/parallel/detail/full_params_options.h"
#include "muster/parallel/detail/local_sgd.h"
#include "muster/precision/detail/grad_scaler.h"
#include "muster/precision/detail/in_fp32.h"
#include "muster/runtime/detail/batch_size_search.h"
#include "muster/runtime/detail/flops.h"
#include "muster/runtime/detail/init_trackers.h"
#include "muster/runtime/detail/loader_preparation.h"
#include "muster/runtime/detail/log_images.h"
#include "muster/runtime/detail/logger.h"
#include "muster/runtime/detail/loop_access.h"
#include "muster/runtime/detail/opened_checkpoint.h"
#include "muster/runtime/detail/outside_forward.h"
#include "muster/runtime/detail/padding.h"
#include "muster/runtime/detail/placement.h"
#include "muster/runtime/detail/resume.h"
#include "muster/runtime/detail/saved_item.h"
#include "muster/runtime/detail/saving.h"
#include "muster/runtime/detail/split.h"
#include "muster/runtime/detail/training.h"
#include "muster/runtime/detail/training_options.h"

/// What accelerator.h and fabric.h only declare, because few programs use it: named items for save() and load(),
/// find_executable_batch_size(), in_fp32(), join_uneven_inputs(), local_sgd(), logger(), pad_across_processes(),
/// PrepareOptions, profile(), scaler_state(), split_between_processes() and summon_full_params(). It also brings
/// functions of muster that take an Accelerator, a Fabric or a Runtime: agreed_votes(), any_rank_has_gradients(),
/// checkpoint_entry(), init_trackers(), prepare_loader(), random_states(), resume() and trace(), with CaughtSignals,
/// KeptRandomStates and OpenedCheckpoint; outside_forward(), which takes a model; log_images(), which takes trackers;
/// and measure_flops().
namespace muster::runtime {

template <class... T>
auto Training::prepare(const PrepareOptions& options, T&&... objects) {
  const PlacementScope scope(*state_, options, {(ModuleLike<T> || Loader<T>)...});
  return prepare(std::forward<T>(objects)...);
}

template <class... M>
void Training::join_uneven_inputs(const std::function<void()>& f,
                                  const extra_t<void(M*...), UnevenInputsOptions>& options, const Model<M>&... models) {
  run_joined({managed_by(*models.prepared())...}, f, options);
}

template <class M>
LocalSGD Training::local_sgd(const Model<M>& model, const extra_t<M, LocalSgdOptions>& options) const {
  return LocalSGD(group_of(*state_), model, options);
}

template <class F>
void Training::profile(F&& f, const extra_t<F, ProfileOptions>& options) const {
  record_profile([&f] { std::forward<F>(f)(); }, options);
}

template <class M, std::invocable<> F>
void Saving::summon_full_params(const Model<M>& model, F&& f, const extra_t<M, FullParamsOptions>& options) const {
  with_full_params(*model.prepared(), std::forward<F>(f), options);
}

}  // namespace muster::runtime
