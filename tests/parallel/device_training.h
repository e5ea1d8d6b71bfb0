#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/device_world.h"
#include "muster/optim/detail/norm.h"
#include "muster/parallel/local_sgd.h"
#include "muster/testing/compare.h"
#include "optim/device_norm.h"
#include "parallel/replicated_model.h"
#include "parallel/sharded_model.h"
#include "parallel/sharded_models.h"
#include "parallel/sync_batch_norm.h"

/// Training of a small model on a device and on the CPU, for comparison.
namespace muster::parallel::on_device {

/// Which streams the program uses.
enum class Streams {
  one,     ///< the current one
  two,     ///< a part of the forward runs on a second stream, beside the other part
  beside,  ///< forwards run on a second stream, two for each step; each backward is called on another one
};

/// How a model is managed and used.
struct Managed {
  std::string name = "ddp";  ///< or "zero1", "zero2", "fsdp"
  double bucket_mb = 25;
  std::string param_dtype = {};
  std::string reduce_dtype = {};
  bool hybrid = false;
  int64_t unit_elements = 60;
  int kept_over = 0;  ///< reshard_after_forward
  std::string comm_hook = "none";
  Streams streams = Streams::one;
  bool batch_norm = false;   ///< synchronized
  bool evaluates = false;    ///< layers are left out of a forward without gradients
  bool again = false;        ///< layers are computed again in backward, twice
  bool accumulates = false;  ///< two backwards for each step, the first without synchronisation
  bool unfreezes = false;    ///< a layer is frozen for the first steps
  bool misses = false;       ///< rank 1 has no batch for the third step
  bool writes = false;       ///< the program writes sharded parameters
  int local_sgd_steps = 0;
  bool clips = true;  ///< by the norm of gradients
  int steps = 4;
};

inline void wait_for(c10::Stream waiting, c10::Stream awaited) {
  c10::Event event(awaited.device_type());
  event.record(awaited);
  event.block(waiting);
}

/// The streams of a program on a device; on the CPU all of this does nothing.
class ProgramStreams {
 public:
  explicit ProgramStreams(at::Device device) : device_(device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl streams(device.type());
    for (int i = 0; i < 3; ++i) all_.push_back(streams.getStreamFromGlobalPool(device, false));
  }
  /// Stream i is current while the result lives.
  c10::OptionalStreamGuard on(size_t i) const {
    return all_.empty() ? c10::OptionalStreamGuard() : c10::OptionalStreamGuard(all_[i]);
  }
  c10::Stream current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }
  /// Stream i comes after the current one, or before it.
  void fork(size_t i) const {
    if (!all_.empty()) wait_for(all_[i], current());
  }
  void join(size_t i) const {
    if (!all_.empty()) wait_for(current(), all_[i]);
  }
  void record(const at::Tensor& tensor, size_t i) const {
    if (!all_.empty()) tensor.record_stream(all_[i]);
  }
  void record(const at::Tensor& tensor) const {
    if (!all_.empty()) tensor.record_stream(current());
  }

 private:
  at::Device device_;
  std::vector<c10::Stream> all_;
};

/// Computes f again in backward, twice, and calls backward there: its second gradients come late.
struct TwiceAgain : torch::autograd::Function<TwiceAgain> {
  using Layer = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Layer* f) {
    context->save_for_backward({x});
    context->saved_data["f"] = reinterpret_cast<int64_t>(f);
    return (*f)((*f)(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list slopes) {
    auto x = context->get_saved_variables()[0];
    const auto& f = *reinterpret_cast<const Layer*>(context->saved_data["f"].toInt());
    const auto back = [&f](const at::Tensor& input, const at::Tensor& slope) {
      const auto from = input.detach().requires_grad_();
      const torch::AutoGradMode on(true);
      torch::autograd::backward({f(from)}, {slope});
      return from.grad();
    };
    at::Tensor middle;
    {
      const torch::NoGradGuard no_grad;
      middle = f(x);
    }
    return {back(x, back(middle, slopes[0])), at::Tensor()};
  }
};

struct LayersImpl : torch::nn::Module {
  LayersImpl(const Managed& how, at::Device device) : how(how), streams(device) {
    if (how.batch_norm) batch = register_module("batch", torch::nn::BatchNorm1d(37));
  }
  at::Tensor beside(const at::Tensor& x) { return four->forward(two(x)); }
  at::Tensor forward(const at::Tensor& x) {
    auto h = torch::gelu(one(x));
    if (how.again) h = TwiceAgain::apply(h, &layer);
    if (how.batch_norm) h = batch(h);
    const bool two_streams = how.streams == Streams::two;
    at::Tensor a, b = torch::tanh(h);
    if (two_streams) streams.fork(0);
    if (!shortcut) {
      const auto guard = two_streams ? streams.on(0) : c10::OptionalStreamGuard();
      a = beside(h);
    }
    if (two_streams) streams.record(h, 0);
    b = two(b);
    if (two_streams) streams.join(0);
    if (two_streams && a.defined()) streams.record(a);
    return shortcut ? norm(b) : three(norm(a + b));
  }

  Managed how;
  ProgramStreams streams;
  bool shortcut = false;
  torch::nn::Linear one{register_module("one", torch::nn::Linear(10, 37))},
      two{register_module("two", torch::nn::Linear(37, 37))}, four{register_module("four", torch::nn::Linear(37, 37))},
      five{register_module("five", torch::nn::Linear(37, 37))},
      three{register_module("three", torch::nn::Linear(37, 3))};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({37})))};
  torch::nn::BatchNorm1d batch{nullptr};
  TwiceAgain::Layer layer = [this](const at::Tensor& x) { return torch::tanh(five(x)); };
};
TORCH_MODULE(Layers);

inline std::unique_ptr<ManagedModel> manage(torch::nn::Module& module, const comm::Communicator& group,
                                            const Managed& how) {
  if (how.name == "ddp") {
    DdpOptions options{.bucket_cap_mb = how.bucket_mb,
                       .comm_hook = how.comm_hook,
                       .find_unused_parameters = true,
                       .first_bucket_mb = how.bucket_mb};
    options.power_sgd.start_iteration = 0;
    return std::make_unique<ReplicatedModel>(module, group, options);
  }
  ShardedOptions options{.unit_min_elements = how.unit_elements};
  options.stage = how.name == "zero1"   ? ShardStage::optimizer
                  : how.name == "zero2" ? ShardStage::gradients
                                        : ShardStage::full;
  if (!how.param_dtype.empty()) options.param_dtype = at::kBFloat16;
  if (!how.reduce_dtype.empty()) options.reduce_dtype = at::kBFloat16;
  if (how.kept_over > 0) options.reshard_after_forward = how.kept_over;
  if (!how.hybrid) return std::make_unique<ShardedModel>(module, group, options);
  auto [shards, replicas] = sharded::two_by_two(group);
  return std::make_unique<ShardedModel>(module, shards, replicas, options);
}

/// Trains on one rank. `at_step` is called before each step.
class Training {
 public:
  Training(const comm::Communicator& group, at::Device device, const Managed& how)
      : group_(group), device_(device), how_(how), net_(build(how, device)) {
    net_->to(device);
    for (int i = 0; i < 2 * how.steps; ++i) batches_.push_back(batch(i));  // the host waits for copies to the device
    if (how.batch_norm) convert_sync_batchnorm(*net_, group);
    if (how.unfreezes)
      for (auto& parameter : net_->four->parameters()) parameter.requires_grad_(false);
    model_ = manage(*net_, group, how);
    parameters_ = net_->parameters();
  }
  /// What this rank has after all steps.
  std::vector<at::Tensor> run(const std::function<void(int)>& at_step = [](int) {});

 private:
  static Layers build(const Managed& how, at::Device device) {
    static std::mutex one_generator;
    const std::lock_guard lock(one_generator);
    torch::manual_seed(3);
    return Layers(how, device);
  }
  at::Tensor batch(int i) const {
    const auto x = torch::sin(torch::arange(60) * 0.37 + i * 1.3 + group_.rank() * 0.71).view({6, 10}).to(device_);
    return how_.param_dtype.empty() ? x : x.to(at::kBFloat16);
  }
  at::Tensor loss(const at::Tensor& x) {
    model_->enter_forward();
    const auto result = net_->forward(x).to(at::kFloat).square().mean();
    model_->leave_forward();
    return result;
  }
  void backward(const at::Tensor& loss) {
    model_->before_backward();
    loss.backward();
    model_->after_backward();
  }
  void evaluate(const at::Tensor& x);
  void train(int i);
  void train_beside(int i);
  void miss() {
    model_->gradient_reductions()->start_reduction();
    model_->gradient_reductions()->finish_reduction();
  }
  void write();
  void clip();
  void step();

  comm::Communicator group_;
  at::Device device_;
  Managed how_;
  Layers net_;
  std::unique_ptr<ManagedModel> model_;
  std::vector<at::Tensor> parameters_, batches_;
};

inline void Training::evaluate(const at::Tensor& x) {
  const torch::NoGradGuard no_grad;
  for (const bool shortcut : {false, true}) {
    net_->shortcut = shortcut;
    (void)loss(x);
  }
  net_->shortcut = false;
}

inline void Training::write() {
  auto* sharded = dynamic_cast<ShardedModel*>(model_.get());
  sharded->summon_full_params(
      [&] {
        const torch::NoGradGuard no_grad;
        net_->two->weight.mul_(0.75);
      },
      {.writeback = true});
}

/// The forwards on stream 0, which waits for nothing; their backwards on streams 1 and 2.
inline void Training::train_beside(int i) {
  const auto& streams = net_->streams;
  for (size_t k = 0; k < 2; ++k) {
    at::Tensor result;
    {
      const auto guard = streams.on(0);
      result = loss(batches_[static_cast<size_t>(2 * i) + k]);
    }
    const auto guard = streams.on(1 + k);
    backward(result);
  }
  const auto guard = streams.on(2);
  step();
  streams.fork(0);
}

inline void Training::clip() {
  constexpr double kMost = 0.05;
  const auto scale = [&](const auto& by) { model_->for_each_gradient(parameters_, by); };
  if (device_.is_cpu()) {
    const double norm = optim::norm_from_power_sum(model_->gradient_power_sum(parameters_, 2), 2);
    const double factor = optim::clip_coefficient(norm, kMost);
    scale([&](const at::Tensor& gradient) { gradient.mul_(factor); });
  } else {
    const auto norm = optim::norm_from_power_sum(model_->device_gradient_power_sum(parameters_, 2, device_), 2);
    const auto factor = optim::clip_coefficient(norm, kMost);
    scale([&](const at::Tensor& gradient) { optim::scale_by(gradient, factor); });
  }
}

inline void Training::step() {
  const torch::NoGradGuard no_grad;
  if (how_.clips) clip();
  model_->scale_gradients(parameters_, 0.5);
  model_->begin_update();
  for (const auto& parameter : parameters_)
    if (const auto* local = model_->find(parameter);
        local && model_->has_gradient(parameter) && local->value.numel() > 0)
      at::Tensor(local->value).sub_(local->gradient, 0.1);
  model_->end_update(parameters_);
  for (const auto& parameter : parameters_) model_->zero_grad(parameter, true);
}

inline void Training::train(int i) {
  if (how_.streams == Streams::beside) return train_beside(i);
  const auto& x = batches_[static_cast<size_t>(i)];
  if (how_.writes && i == 2) write();
  if (how_.unfreezes && i == 2)
    for (auto& parameter : net_->four->parameters()) parameter.requires_grad_(true);
  if (how_.accumulates) {
    model_->set_gradient_sync(false);
    backward(loss(batches_[static_cast<size_t>(how_.steps + i)]));
    model_->set_gradient_sync(true);
  }
  if (how_.misses && i == 2 && group_.rank() == 1) miss();
  else backward(loss(x));
  if (how_.evaluates && i % 2 == 1) evaluate(x);
  step();
}

inline std::vector<at::Tensor> Training::run(const std::function<void(int)>& at_step) {
  std::unique_ptr<LocalSGD> local;
  if (how_.local_sgd_steps > 0)
    local =
        std::make_unique<LocalSGD>(*net_, *model_, group_, LocalSgdOptions{.local_sgd_steps = how_.local_sgd_steps});
  for (size_t k = 0; k < 3; ++k) net_->streams.fork(k);
  for (int i = 0; i < how_.steps; ++i) {
    at_step(i);
    train(i);
    if (local) local->step();
  }
  at_step(how_.steps);
  for (size_t k = 0; k < 3; ++k) net_->streams.join(k);
  std::vector<at::Tensor> all;
  for (const auto& [name, value] : model_->full_state(false)) all.push_back(value.to(at::kCPU, false, /*copy=*/true));
  // The model ends with work under way.
  for (size_t k = 0; k < 3; ++k) net_->streams.fork(k);
  train(0);
  for (size_t k = 0; k < 3; ++k) net_->streams.join(k);
  return all;
}

/// What each of so many ranks has, on the CPU.
inline std::vector<std::vector<at::Tensor>> on_the_cpu(int size, const Managed& how) {
  std::vector<std::vector<at::Tensor>> all(static_cast<size_t>(size));
  const auto threads = comm::run_thread_world(size, {}, [&](const comm::Communicator& group) {
    at::set_num_threads(1);
    all[static_cast<size_t>(group.rank())] = Training(group, at::kCPU, how).run();
  });
  EXPECT_EQ(comm::errors_of(threads), "");
  return all;
}

/// A difference to the bits of the CPU. Operations that are staged compute in a thread of the group, with as many
/// threads as that likes, so the same sums may be rounded elsewhere.
inline std::string difference(const at::Tensor& got, const at::Tensor& expected, bool device_backend) {
  if (device_backend) return muster::testing::difference_in_bits(got, expected);
  return muster::testing::difference(got, expected, 1e-4, 1e-5);
}

/// Errors, and the first difference to `expected`, on devices with a backend of their own, or staged.
inline std::string compared(const std::vector<std::vector<at::Tensor>>& expected, const Managed& how, bool side_stream,
                            bool device_backend = true) {
  auto got = std::vector<std::vector<at::Tensor>>(expected.size());
  const auto errors = comm::run_device_world(
      static_cast<int>(expected.size()), {.device_backend = device_backend, .side_stream = side_stream},
      [&](const comm::Communicator& group, at::Device device) {
        at::set_num_threads(1);
        got[static_cast<size_t>(group.rank())] = Training(group, device, how).run();
      });
  if (!errors.empty()) return errors;
  for (size_t r = 0; r < got.size(); ++r)
    for (size_t i = 0; i < got[r].size(); ++i)
      if (const auto text = difference(got[r][i], expected[r][i], device_backend); !text.empty())
        return "rank " + std::to_string(r) + ", tensor " + std::to_string(i) + ": " + text;
  return {};
}

}  // namespace muster::parallel::on_device
