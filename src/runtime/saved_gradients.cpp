#include "saved_gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "model_state.h"
#include "muster/parallel/managed_model.h"

namespace muster::runtime {
namespace {

/// The model of the parameter; nullptr if no prepared model has it.
parallel::ManagedModel* owner_of(const StatefulObjects& contents, const at::Tensor& parameter) {
  const auto& models = contents.models;
  const auto owner =
      std::find_if(models.begin(), models.end(), [&](const auto& model) { return model->managed->expects(parameter); });
  return owner == models.end() ? nullptr : (*owner)->managed.get();
}

struct LoadedGradient {
  parallel::ManagedModel* owner = nullptr;
  at::Tensor parameter;
  parallel::GradientParts parts = {};

  /// `shard`: this rank's shard of the parameter; nullptr if the parameter is whole here.
  void add_reduced(const State& saved, const parallel::ParameterShard* shard, const TensorReader& reader) {
    if (shard) parts.shard = reader.shard(saved, *shard);
    else parts.whole = reader.whole(saved);
  }
  /// Where gradients are whole, reduced and unreduced ones add up to one sum.
  void add_whole(const at::Tensor& saved) { parts.whole = parts.whole.defined() ? parts.whole + saved : saved; }
};

}  // namespace

WaitingGradients waiting_gradients(const StatefulObjects& contents, std::vector<TensorShard>& shards) {
  const auto held = shards_of(contents.models);
  WaitingGradients waiting;
  for (size_t o = 0; o < contents.optimizers.size(); ++o) {
    State::Map whole, reduced;
    const auto parameters =
        contents.optimizers[o]->gradients_are_used() ? std::vector<at::Tensor>() : contents.optimizers[o]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto* owner = owner_of(contents, parameters[i]);
      const auto parts =
          owner ? owner->gradient_parts(parameters[i]) : parallel::GradientParts{.whole = parameters[i].grad()};
      const auto number = std::to_string(i);
      if (parts.whole.defined()) whole.emplace_back(number, parts.whole.detach());
      if (!parts.shard.defined()) continue;
      const auto& shard = held.at(parameters[i].unsafeGetTensorImpl());
      reduced.emplace_back(number, add_shard("gradients/" + std::to_string(o) + "/" + number, shard,
                                             parts.shard.narrow(0, 0, shard.local.numel()), shards));
    }
    waiting.whole.emplace_back(std::move(whole));
    waiting.reduced.emplace_back(std::move(reduced));
  }
  return waiting;
}

std::function<void()> prepare_gradients(const StatefulObjects& contents, const std::vector<SavedGradients>& saved,
                                        const TensorReader& reader) {
  const auto held = shards_of(contents.models);
  std::vector<LoadedGradient> all;
  std::vector<std::pair<std::shared_ptr<PreparedOptimizer>, bool>> optimizers;
  for (size_t o = 0; o < contents.optimizers.size(); ++o) {
    const auto& [whole, reduced, whole_is_reduced] = saved.at(o);
    const auto parameters = contents.optimizers[o]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto number = std::to_string(i);
      const auto shard = held.find(parameters[i].unsafeGetTensorImpl());
      const auto* mine = shard == held.end() ? nullptr : &shard->second;
      LoadedGradient gradient{.owner = owner_of(contents, parameters[i]), .parameter = parameters[i]};
      if (const auto* part = reduced ? reduced->find(number) : nullptr) gradient.add_reduced(*part, mine, reader);
      if (const auto* part = whole ? whole->find(number) : nullptr) {
        if (whole_is_reduced) gradient.add_reduced(*part, mine, reader);
        else gradient.add_whole(part->tensor());
      }
      all.push_back(std::move(gradient));
    }
    const auto is_there = [](const State* gradients) { return gradients && !gradients->map().empty(); };
    optimizers.emplace_back(contents.optimizers[o], is_there(whole) ? whole_is_reduced : is_there(reduced));
  }
  return [all = std::move(all), optimizers = std::move(optimizers), models = contents.models] {
    const at::NoGradGuard no_grad;
    for (const auto& [owner, parameter, parts] : all)  // all read before any is loaded: they share a reused buffer
      if (owner) owner->zero_grad(parameter, /*set_to_none=*/true);
      else parameter.mutable_grad().reset();
    for (const auto& [owner, parameter, parts] : all)
      if (owner && (parts.whole.defined() || parts.shard.defined())) owner->load_gradient(parameter, parts);
      else if (parts.whole.defined()) parameter.mutable_grad() = at::empty_like(parameter).copy_(parts.whole);
    for (const auto& [optimizer, reduced] : optimizers) optimizer->note_loaded_gradients(reduced);
  };
}

}  // namespace muster::runtime
