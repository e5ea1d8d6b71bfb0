#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>

#include "comm/device_agreement.h"
#include "muster/base/error.h"
#include "muster/runtime/detail/objects.h"
#include "parallel/join.h"
#include "runtime_state.h"
#include "sharded_tensors.h"

namespace muster::runtime {

void RuntimeState::broadcast_training_states(int rank) {
  const bool own = group_.rank() == rank;
  const auto follow = [&](const State& mine, const auto& load) {
    const auto state =
        broadcast_object(group_.internal("training states after uneven inputs"), own ? mine : State(), rank);
    if (!own) load(state);
  };
  gradient_processing_->for_each_optimizer([&](PreparedOptimizer& optimizer) {
    std::vector<TensorShard> cut;
    const auto mine = optimizer.state_dict("", cut);
    // One of a model that is sharded over ranks was not stepped here.
    if (cut.empty()) follow(mine, [&](const State& state) { optimizer.prepare_load(state, TensorReader(nullptr))(); });
  });
  for (const auto& scheduler : saves_.schedulers())
    if (!scheduler->sealed())
      follow(scheduler->state_dict(), [&](const State& state) { scheduler->load_state_dict(state); });
}

void RuntimeState::join_uneven_inputs(std::vector<std::shared_ptr<parallel::ManagedModel>> models,
                                      const std::function<void()>& f, const UnevenInputsOptions& options) {
  require_launched();
  if (models.empty())
    for (const auto& model : registry_->models()) models.push_back(model->managed);
  const auto before = loaders_.set_even(options.even_batches);
  accumulation_->set_joined(cluster_.world_size > 1);
  const auto restore = c10::make_scope_exit([&] {
    accumulation_->set_joined(false);
    registry_->start_steps(0);  // ranks have made different numbers of them
    for (const auto& [loader, even] : before) loader->set_even_batches(even);
  });
  const auto batches = [&] {
    f();
    if (cluster_.world_size > 1 && accumulation_->unfinished())
      throw UsageError("MU118",
                       "a loop in join_uneven_inputs ended inside a window of accumulated gradients, so that these "
                       "would reach no step: go on to the end of the window, and leave sync_with_dataloader on");
    accumulation_->count_last();  // of a window that only others go on with
  };
  parallel::join_uneven_inputs(group_, models, batches,
                               {.divide_by_initial_world_size = options.divide_by_initial_world_size},
                               [this](int last_rank) {
                                 comm::require_same_device_operations(group_);
                                 broadcast_training_states(last_rank);
                               });
}

}  // namespace muster::runtime
