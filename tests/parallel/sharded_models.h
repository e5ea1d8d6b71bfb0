#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/thread_world.h"
#include "muster/parallel/wrap.h"
#include "muster/testing/gtest.h"
#include "muster/testing/world.h"
#include "optim/fused.h"
#include "parallel/sharded_model.h"

namespace muster::parallel::sharded {

namespace nn = torch::nn;
using torch::Tensor;

/// Ranks as threads, one at a time in an order drawn from a seed.
inline void on_seeded_ranks(int world, const std::function<void(comm::Communicator)>& body,
                            bool shared_memory = false) {
  const auto as_rank = [&](comm::Communicator group) {
    at::set_num_threads(1);
    body(std::move(group));
  };
  if (!shared_memory) return muster::testing::run_threads(world, 7, as_rank);
  for (const auto& error : comm::run_thread_world(world, {.seed = 7, .shared_memory = true}, as_rank))
    if (error) std::rethrow_exception(error);
}

/// Of four ranks: this one's pair of shards, and its pair of replicas. Collective.
inline std::pair<comm::Communicator, comm::Communicator> two_by_two(const comm::Communicator& group) {
  std::pair<comm::Communicator, comm::Communicator> mine;
  for (int k = 0; k < 2; ++k) {
    auto row = group.subgroup({2 * k, 2 * k + 1}), column = group.subgroup({k, k + 2});
    if (group.rank() / 2 == k) mine.first = row;
    if (group.rank() % 2 == k) mine.second = column;
  }
  return mine;
}

inline constexpr int64_t kWords = 29, kWidth = 24;

/// A small language model with no trace of sharding in it. Most sizes are no multiples of 64.
struct NetImpl : nn::Module {
  explicit NetImpl(bool spare = false) {
    embed = register_module("embed", nn::Embedding(kWords, kWidth));
    auto layer = nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(50).dropout(0.0);
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3)));
    head = register_module("head", nn::Linear(kWidth, kWords));
    if (spare) unused = register_module("unused", nn::Linear(5, 7));
  }
  Tensor forward(const Tensor& words) { return head(encoder(embed(words))); }
  nn::Embedding embed{nullptr};
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr}, unused{nullptr};
};
TORCH_MODULE(Net);

/// The process has one generator: ranks that are threads take turns. `marked` puts the head in a unit of its own.
inline Net make_net(bool spare = false, at::ScalarType dtype = at::kFloat, uint64_t seed = 11, bool marked = false) {
  static std::mutex mutex;
  std::scoped_lock lock(mutex);
  torch::manual_seed(seed);
  Net net(spare);
  if (marked) {
    net->unregister_module("head");
    net->head = net->register_module("head", wrap(net->head));
  }
  net->to(dtype);
  return net;
}

inline Tensor words_of(int step, int rank) {
  return (torch::arange(6 * 4).view({6, 4}) * (step + 3) + rank * 7 + step) % kWords;
}

inline Tensor loss_of(const Tensor& logits, const Tensor& words) {
  return nn::functional::cross_entropy(logits.reshape({-1, kWords}), words.reshape({-1}).roll(1));
}

struct ForwardScope {
  ManagedModel& model;
  explicit ForwardScope(ManagedModel& model) : model(model) { model.enter_forward(); }
  ~ForwardScope() { model.leave_forward(); }
};

inline Tensor forward(ManagedModel& model, Net& net, const Tensor& words) {
  const ForwardScope scope(model);
  return net(words);
}

inline void backward(ManagedModel& model, const Tensor& loss) {
  model.before_backward();
  loss.backward();
  model.after_backward();
}

/// What a user's own function may do to backward: apply() it to a tensor on the way.
struct Throwing : torch::autograd::Function<Throwing> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("user's backward");
  }
};

inline torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(3e-3).weight_decay(0.1); }

/// One process computes each rank's part, sums gradients in rank order, and steps every parameter by the vector body.
struct Reference {
  Net net;
  int world;
  std::vector<std::vector<double>> losses;  // [step][rank]
  std::vector<Tensor> first, second;
  int64_t steps = 0;

  Reference(Net net, int world) : net(std::move(net)), world(world) { at::set_num_threads(1); }

  void step(const std::vector<std::vector<Tensor>>& gradients) {
    at::NoGradGuard no_grad;
    ++steps;
    auto parameters = net->parameters();
    first.resize(parameters.size());
    second.resize(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor sum;
      for (const auto& of_rank : gradients)
        if (of_rank[i].defined()) sum = sum.defined() ? sum + of_rank[i] / world : of_rank[i] / world;
      if (!sum.defined()) continue;
      const auto numel = parameters[i].numel();
      const auto pad = [&](const Tensor& t) {
        return torch::constant_pad_nd(t.reshape({-1}), {0, (64 - numel % 64) % 64});
      };
      auto value = pad(parameters[i]).clone(), gradient = pad(sum).clone();
      if (!first[i].defined()) first[i] = torch::zeros_like(value), second[i] = torch::zeros_like(value);
      const auto o = adamw();
      at::_fused_adamw_({value}, {gradient}, {first[i]}, {second[i]}, {}, {torch::full({}, double(steps), at::kFloat)},
                        o.lr(), std::get<0>(o.betas()), std::get<1>(o.betas()), o.weight_decay(), o.eps(), false,
                        false);
      parameters[i].copy_(value.narrow(0, 0, numel).view_as(parameters[i]));
    }
  }

  /// `micro` backwards per step and rank.
  void train(int count, int micro = 1) {
    for (int s = 0; s < count; ++s) {
      std::vector<std::vector<Tensor>> gradients;
      losses.emplace_back();
      for (int rank = 0; rank < world; ++rank) {
        for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
        for (int m = 0; m < micro; ++m) {
          auto words = words_of(s * micro + m, rank);
          auto loss = loss_of(net(words), words);
          loss.backward();
          losses.back().push_back(loss.item<double>());
        }
        gradients.emplace_back();
        for (auto& parameter : net->parameters()) gradients.back().push_back(parameter.grad());
      }
      step(gradients);
    }
  }
};

inline void expect_state(ShardedModel& model, Net reference, bool exact) {
  auto wanted = reference->named_parameters();
  auto state = model.full_state(false);
  ASSERT_EQ(state.size(), wanted.size());
  for (auto& [name, tensor] : state) {
    ASSERT_TRUE(wanted.contains(name)) << name;
    if (exact) EXPECT_TRUE(torch::equal(tensor, wanted[name])) << name << " " << (tensor - wanted[name]).abs().max();
    else EXPECT_LT((tensor - wanted[name]).abs().max().item<double>(), 1e-12) << name;
  }
}

/// Trains as the reference has been trained, as this rank.
inline void expect_rank_like(const Reference& reference, comm::Communicator group, at::ScalarType dtype, int micro,
                             bool exact, const ShardedOptions& options = {}) {
  auto net = make_net(true, dtype, /*seed=*/11 + group.rank());  // rank 0's values win
  auto weight = net->head->weight;                               // the user's own handle
  torch::optim::AdamW adam(net->parameters(), adamw());
  ShardedModel model(*net, group, options);
  optim::FusedStep optimizer(adam, {&model});
  for (size_t s = 0; s < reference.losses.size(); ++s) {
    for (int m = 0; m < micro; ++m) {
      model.set_gradient_sync(m + 1 == micro);
      auto words = words_of(static_cast<int>(s) * micro + m, group.rank());
      auto loss = loss_of(forward(model, net, words), words);
      backward(model, loss);
      EXPECT_NEAR(loss.item<double>(), reference.losses[s][group.rank() * micro + m], exact ? 0 : 1e-12);
    }
    optimizer.step();
    optimizer.zero_grad();
    if (options.stage == ShardStage::full) {
      EXPECT_EQ(model.stats().gathered_bytes, 0);
    }
    EXPECT_EQ(model.stats().temporary_bytes, 0);
  }
  EXPECT_TRUE(optimizer.fused());
  EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{kWords, kWidth}));
  expect_state(model, reference.net, exact);
}

/// Every stage, and what changes when memory comes and goes.
inline std::vector<ShardedOptions> all_stages() {
  return {{.stage = ShardStage::optimizer},
          {.stage = ShardStage::gradients},
          {},
          {.reshard_after_forward = false},
          {.limit_gathered_mb = 64}};
}

inline std::string name_of(const ShardedOptions& options) {
  return "stage " + std::to_string(static_cast<int>(options.stage)) + (options.reshard_after_forward ? "" : ", kept") +
         (options.limit_gathered_mb > 0 ? ", ahead" : "");
}

}  // namespace muster::parallel::sharded
