#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "comm/thread_world.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/world.h"
#include "optim/fused.h"
#include "parallel/replicated_model.h"
#include "parallel/single_device_model.h"

namespace muster::parallel::testing {

/// Ranks may be threads here, which share LibTorch's default generator: everything is drawn from generators of our own.
inline at::Generator generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

inline void draw_parameters(torch::nn::Module& module, uint64_t seed) {
  torch::NoGradGuard no_grad;
  auto random = generator(seed);
  for (auto& parameter : module.parameters()) parameter.normal_(0.0, 0.3, random);
}

struct Net : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor x) = 0;
  virtual at::Tensor draw_input(int64_t batch, at::Generator random) const = 0;
};

struct Mlp final : Net {
  Mlp() {
    first = register_module("first", torch::nn::Linear(10, 32));
    second = register_module("second", torch::nn::Linear(32, 7));
  }
  at::Tensor forward(at::Tensor x) override { return second(torch::tanh(first(x))); }
  at::Tensor draw_input(int64_t batch, at::Generator random) const override {
    return torch::randn({batch, 10}, random);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

struct Cnn final : Net {
  Cnn() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    head = register_module("head", torch::nn::Linear(6, 5));
  }
  at::Tensor forward(at::Tensor x) override { return head(torch::relu(norm(convolution(x))).mean({2, 3})); }
  at::Tensor draw_input(int64_t batch, at::Generator random) const override {
    return torch::randn({batch, 3, 6, 6}, random);
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

struct Transformer final : Net {
  Transformer() {
    auto options = torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(24).dropout(0.0);
    first = register_module("first", torch::nn::TransformerEncoderLayer(options));
    second = register_module("second", torch::nn::TransformerEncoderLayer(options));
    head = register_module("head", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(at::Tensor x) override {  // batch first, as the loss divides by the batch
    return head(second(first(x.transpose(0, 1)))).transpose(0, 1);
  }
  at::Tensor draw_input(int64_t batch, at::Generator random) const override {
    return torch::randn({batch, 5, 16}, random);
  }
  torch::nn::TransformerEncoderLayer first{nullptr}, second{nullptr};
  torch::nn::Linear head{nullptr};
};

enum class Kind { mlp, cnn, transformer };

inline std::shared_ptr<Net> make_net(Kind kind, at::ScalarType dtype, uint64_t seed) {
  std::shared_ptr<Net> net;
  if (kind == Kind::mlp) net = std::make_shared<Mlp>();
  if (kind == Kind::cnn) net = std::make_shared<Cnn>();
  if (kind == Kind::transformer) net = std::make_shared<Transformer>();
  draw_parameters(*net, seed);
  net->to(dtype);
  return net;
}

class ForwardScope {
 public:
  explicit ForwardScope(ManagedModel& model) : model_(model) { model_.enter_forward(); }
  ~ForwardScope() { model_.leave_forward(); }
  ForwardScope(const ForwardScope&) = delete;

 private:
  ManagedModel& model_;
};

template <class M>
at::Tensor run(ManagedModel& model, M& net, const at::Tensor& input) {
  ForwardScope scope(model);
  return net.forward(input);
}

inline void backward(ManagedModel& model, const at::Tensor& loss, bool retain_graph = false) {
  model.before_backward();
  loss.backward({}, retain_graph);
  model.after_backward();
}

/// The part of rank `rank` of the batch of step `step`.
inline at::Tensor draw_part(const Net& net, int64_t batch, int step, int rank, at::ScalarType dtype) {
  return net.draw_input(batch, generator(1000 + 100 * step + rank)).to(dtype);
}

inline at::Tensor loss_of(const at::Tensor& output) { return (output * output).mean() + output.sin().mean(); }

inline std::vector<at::Tensor> values(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().clone());
  for (const auto& buffer : module.buffers()) all.push_back(buffer.detach().clone());
  return all;
}

inline std::vector<at::Tensor> gradients(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : module.parameters())
    all.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return all;
}

/// As ranks that run freely, and under a seeded scheduler.
inline void on_ranks(int size, const std::function<void(comm::Communicator)>& body) {
  for (const uint64_t seed : {0, 11})
    muster::testing::run_threads(size, seed, [&](comm::Communicator group) {
      at::set_num_threads(1);
      body(group);
    });
}

/// Operations of a group, counted as they end.
struct Trace {
  std::mutex mutex;
  std::vector<comm::OperationEvent> events;
  explicit Trace(const comm::Communicator& group) {
    group.observe([this](const comm::OperationEvent& event) {
      const std::lock_guard lock(mutex);
      events.push_back(event);
      events.back().group = {};
    });
  }
  size_t count(std::string_view operation) {
    const std::lock_guard lock(mutex);
    return static_cast<size_t>(
        std::count_if(events.begin(), events.end(), [&](const auto& event) { return event.operation == operation; }));
  }
};

inline at::Tensor input_of(int rank, uint64_t seed = 5) {
  return torch::randn({3, 4}, generator(seed + static_cast<uint64_t>(rank)));
}

using Part = std::function<at::Tensor(const at::Tensor&)>;

/// Computes f again in backward, and calls backward there.
struct Again : torch::autograd::Function<Again> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Part* f) {
    context->save_for_backward({x});
    context->saved_data["f"] = reinterpret_cast<int64_t>(f);
    return (*f)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list slopes) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor y;
    {
      const torch::AutoGradMode on(true);
      y = (*reinterpret_cast<const Part*>(context->saved_data["f"].toInt()))(x);
    }
    torch::autograd::backward({y}, {slopes[0]});
    return {x.grad(), at::Tensor()};
  }
};

/// The identity, which calls f in backward.
struct Calling : torch::autograd::Function<Calling> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::function<void()>* f) {
    context->saved_data["f"] = reinterpret_cast<int64_t>(f);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list slopes) {
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["f"].toInt()))();
    return {slopes[0], at::Tensor()};
  }
};

}  // namespace muster::parallel::testing
