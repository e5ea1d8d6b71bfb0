#include <exception>

#include "parallel/sharded/sharded_state.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kUpdated{"fsdp: shards are gathered after their update"};
constexpr device::SyncPoint kGathers{"fsdp: shards are updated after the gathers that read them"};
constexpr device::SyncPoint kEnd{"fsdp: memory is freed after the gathers and reductions of a model"};

}  // namespace

ShardedModel::State::~State() {
  for (const auto& [tensor, position] : early_hooks_) tensor.remove_hook(position);
  if (streams.accelerator.is_cpu()) return;
  try {
    const auto current = device::current_stream(streams.accelerator);
    for (const auto& stream : {streams.unshard, streams.reduce}) device::wait_stream(kEnd, current, stream);
    for (auto& unit : units) unit->release_memory();
  } catch (const std::exception&) {  // the device has failed, and memory is not used again
  }
}

void ShardedModel::State::begin_update() {
  wait_for_values();
  device::wait_stream(kGathers, device::current_stream(streams.accelerator), streams.unshard);
  if (one_copy) in_update([this] { one_copy->begin_update(); });
}

void ShardedModel::State::update(const std::vector<bool>& of_units) {
  device::wait_stream(kUpdated, streams.unshard, device::current_stream(streams.accelerator));
  name_gathers("new values");
  for (size_t u = 0; u < units.size(); ++u)
    if (of_units[u]) unshard_scheduler_->update(u);
}

void ShardedModel::State::wait_for_values() {
  if (!settings.keeps_params_unsharded()) return;
  for (size_t u = 0; u < units.size(); ++u) unshard_scheduler_->wait(u);
}

}  // namespace muster::parallel
