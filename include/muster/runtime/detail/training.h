#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <c10/util/irange.h>

#include "muster/data/detail/data_loader.h"
#include "muster/optim/detail/grad_norm.h"
#include "muster/optim/detail/per_group.h"
#include "muster/precision/detail/autocast.h"
#include "muster/runtime/detail/accumulation.h"
#include "muster/runtime/detail/model.h"
#include "muster/runtime/detail/optimizer.h"
#include "muster/runtime/detail/options.h"
#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/detail/state_access.h"

namespace muster {
struct ClipGradientsOptions;
class LocalSGD;
struct LocalSgdOptions;
struct PrepareOptions;
struct ProfileOptions;
struct UnevenInputsOptions;
}  // namespace muster

namespace muster::runtime {

/// Defined in muster/runtime/callback.h.
template <class C, class... P, class... A>
void call_each(const std::vector<std::shared_ptr<FabricCallback>>& all, void (C::*member)(P...), A&&... arguments);

/// Prepares objects and trains with them: backward, accumulation, clipping, loops over data.
class Training {
 public:
  /// Takes modules, optimizers, schedulers (Muster's or LibTorch's), muster::DataLoaders, and functions that make them
  /// (see function_argument.h), in any order; returns their handles in that order, a single one without a tuple.
  /// Temporaries are owned, named objects borrowed. With options first: prepare({.move_to_device = false}, net).
  /// Gradients that a module has already count as those of a backward in no_sync(): the next one communicates the sum.
  /// Collective: with the same arguments on every rank. Throws: ConfigError (MU566), and (MU150) on every rank where
  /// ranks give different modules, or optimizers with different options; UsageError (MU581) for a module that shares
  /// a parameter with one that is prepared.
  template <class... T>
    requires(!std::same_as<std::remove_cvref_t<T>, PrepareOptions> && ...)
  auto prepare(T&&... objects) {
    static_assert(sizeof...(T) > 0, "prepare takes at least one object");
    return runtime::prepare(*state_, std::forward<T>(objects)...);
  }
  template <class... T>
  auto prepare(const PrepareOptions& options, T&&... objects);

  /// Runs backward of the loss, scaled for the precision and weighted for accumulation. The strategy communicates the
  /// gradients. Collective: unless inside no_sync().
  void backward(const at::Tensor& loss, BackwardOptions options = {});

  /// Opens one micro-batch of the loader in use; call it before the forward. At the end of a window of
  /// gradient_accumulation_steps() micro-batches, or of the loader, gradients are communicated and optimizers step.
  template <class... M>
  [[nodiscard]] AccumulationScope accumulate(const Model<M>&... models) {
    return AccumulationScope(next_micro_batch(), {managed_by(*models.prepared())...});
  }
  /// True if the current micro-batch ends its window, and before the first micro-batch.
  bool sync_gradients() const;
  int gradient_accumulation_steps() const;
  /// Throws: ConfigError (MU181) for less than one.
  void set_gradient_accumulation_steps(int steps);
  /// Gradients of these models stay local until the scope is destroyed; the next backward communicates their sum.
  template <class... M>
  [[nodiscard]] runtime::NoSyncScope no_sync(const Model<M>&... models) {
    return runtime::NoSyncScope({managed_by(*models.prepared())...}, true);
  }
  /// As no_sync(); does nothing if `enabled` is false.
  template <class M>
  [[nodiscard]] runtime::NoSyncScope no_backward_sync(const Model<M>& model, bool enabled = true) {
    return runtime::NoSyncScope({managed_by(*model.prepared())}, enabled);
  }
  /// Autocast as in a forward, for code outside of one, such as the loss; or autocast off, inside one.
  [[nodiscard]] precision::AutocastScope autocast(const AutocastOptions& options = {}) const;
  /// Under "16-mixed", divides gradients by the scale of their loss; repeated calls do nothing. Clipping calls it.
  /// Collective: as clipping, if there is one optimizer. If there are several, a rank whose loss did not use a model
  /// sees the other ranks' gradients only from step() on.
  void unscale_gradients();
  /// As above, for one optimizer. Collective: as clipping.
  void unscale_gradients(const Optimizer& optimizer);
  /// True if the last step() of any prepared optimizer was skipped because gradients were not finite. Waits as
  /// Optimizer::step_was_skipped().
  bool optimizer_step_was_skipped() const;

  /// Scales the model's gradients so that their norm is at most max_norm; returns the norm before scaling. Before the
  /// last micro-batch of an accumulation window, clipping does nothing and returns 0. The norm of gradients on a device
  /// goes to the host only when it is read (GradNorm).
  /// Collective: if the strategy shards gradients, and if a rank's loss did not use the model (see Optimizer::step()).
  template <class M>
  GradNorm clip_grad_norm_(const Model<M>& model, double max_norm, ClipOptions options = {}) {
    return clip_grad_norm_(model.parameters(), max_norm, options);
  }
  GradNorm clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options = {});
  /// As above, for each parameter group separately, with one max_norm or one for each.
  GradNorms clip_grad_norm_(const Optimizer& optimizer, const PerGroup<double>& max_norm, ClipOptions options = {});
  /// Clamps every gradient element to [-clip_value, clip_value].
  template <class M>
  void clip_grad_value_(const Model<M>& model, double clip_value) {
    clip_grad_value_(model.parameters(), clip_value);
  }
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Clips the gradients of the optimizer's parameters, by norm (returned) or by value (returns 0).
  GradNorm clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options);

  /// Runs `f`, a loop over batches whose number may differ between ranks, as when even_batches is off. A rank whose `f`
  /// has returned takes part in the communication of the others, with zeros for gradients, until all have returned. All
  /// ranks then continue from the last step: parameters, buffers, optimizer states, loss scales and schedulers
  /// (LibTorch's ReduceLROnPlateauScheduler keeps its counts). In `f`, call no other collective; for values, use
  /// collector(). `models`: those that `f` trains; if none is given, all prepared ones. Collective.
  /// Throws: UsageError (MU117) for sharded models; (MU118, MU119) if ranks run different steps or one of them throws.
  template <class... M>
  void join_uneven_inputs(const std::function<void()>& f, const extra_t<void(M*...), UnevenInputsOptions>& options = {},
                          const Model<M>&... models);
  /// Returns the loader, which begins its next pass (only that one) at this batch; in constant time, or, for a
  /// stream, by skipping samples. Throws: UsageError (MU108) for a batch beyond its end.
  template <class Batch>
  static DataLoader<Batch> skip_first_batches(DataLoader<Batch> loader, int64_t batches) {
    return muster::skip_first_batches(std::move(loader), batches);
  }
  /// While the returned object lives, ranks average parameters every few steps instead of gradients in every step.
  template <class M>
  [[nodiscard]] LocalSGD local_sgd(const Model<M>& model, const extra_t<M, LocalSgdOptions>& options = {}) const;
  /// Makes every BatchNorm in the model use statistics of all ranks in training; returns their number. Collective.
  template <class M>
  int64_t convert_sync_batchnorm(const Model<M>& model) const {
    return convert_batch_norms(*model);
  }
  /// Returns 0, 1, ... count - 1; after load_state(), without the epochs that the checkpoint has completed.
  auto epochs(int64_t count) { return c10::irange(first_epoch(count), count); }
  /// Seeds all generators, with the same seed on every rank or with the rank added to it. Loaders prepared later
  /// shuffle by it.
  void set_seed(uint64_t seed, bool per_rank = false);

  /// Empties these handles, so that the memory of their objects is freed once nothing else holds them. Begins a new
  /// accumulation window, and releases cached memory of accelerators.
  template <class... T>
  void free_memory(T&... handles) {
    ([](auto& handle) { [[maybe_unused]] const auto gone = std::move(handle); }(handles), ...);
    forget_freed();
  }
  /// Calls a function of every callback that has it: call(&Mine::on_epoch_end, epoch).
  template <class C, class... P, class... A>
  void call(void (C::*member)(P...), A&&... arguments) const {
    runtime::call_each(callbacks(), member, std::forward<A>(arguments)...);
  }
  /// Runs `f` and writes what all ranks did during it as one trace, for chrome://tracing. Collective.
  template <class F>
  void profile(F&& f, const extra_t<F, ProfileOptions>& options = {}) const;

 protected:
  explicit Training(std::shared_ptr<RuntimeState> state) : state_(std::move(state)) {}

 private:
  /// Returns how many epochs a loaded checkpoint has completed, at most `count`; they are not counted again.
  int64_t first_epoch(int64_t count);
  std::shared_ptr<runtime::Accumulation> next_micro_batch();
  int64_t convert_batch_norms(torch::nn::Module& module) const;
  void forget_freed();
  void run_joined(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                  const UnevenInputsOptions& options);
  void record_profile(const std::function<void()>& f, const ProfileOptions& options) const;
  const std::vector<std::shared_ptr<FabricCallback>>& callbacks() const;

  std::shared_ptr<RuntimeState> state_;
};

}  // namespace muster::runtime
