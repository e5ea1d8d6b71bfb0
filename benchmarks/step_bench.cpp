// Steps of a small MLP: LibTorch alone with its own optimizer or the fused call, and both APIs. Cases: "OPTIMIZER
// WAY".
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/torch.h>

#include "mlp.h"
#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "protocol.h"

namespace {

namespace F = torch::nn::functional;
using Batches = std::vector<bench::Batch>;
constexpr int kSteps = 1000, kWarmUp = 100;

template <class M, class O>
torch::Tensor plain_loop(M& model, O& optimizer, const Batches& batches, int steps) {
  torch::Tensor loss;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    loss = F::cross_entropy(model->forward(batches[i].data), batches[i].target);
    loss.backward();
    optimizer.step();
  }
  return loss;
}

template <class D, class M, class O>
torch::Tensor api_loop(D& api, M& model, O& optimizer, const Batches& batches, int steps) {
  torch::Tensor loss;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    loss = F::cross_entropy(model(batches[i].data), batches[i].target);
    api.backward(loss);
    optimizer.step();
  }
  return loss;
}

// The fused call of LibTorch, by hand: the least that a loop with this optimizer can cost.
class FusedByHand {
 public:
  FusedByHand(std::vector<torch::Tensor> parameters, bool adamw) : parameters_(std::move(parameters)), adamw_(adamw) {
    for (const auto& parameter : parameters_) {
      if (!adamw_) continue;
      averages_.push_back(torch::zeros_like(parameter));
      squares_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::kFloat));
    }
  }
  void zero_grad() {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
  }
  void step() {
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    gradients.reserve(parameters_.size());
    for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
    if (!adamw_) return at::_fused_sgd_(parameters_, gradients, {}, 0.0, 0.0, 0.01, 0.0, false, false, true);
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, averages_, squares_, {}, steps_, 1e-3, 0.9, 0.999, 1e-2, 1e-8, false,
                      false);
  }

 private:
  std::vector<torch::Tensor> parameters_, averages_, squares_, steps_;
  bool adamw_;
};

template <class Loop>
bench::Measured timed(int steps, int warm_up, Loop&& loop) {
  loop(warm_up);
  torch::Tensor loss;
  const double seconds = bench::seconds([&] { loss = loop(steps); });
  return {.value = seconds / steps * 1e6, .check = loss.item<double>()};
}

template <class D, class Setup>
bench::Measured through_api(D& api, Setup&& setup, bool adamw, const Batches& batches, int steps, int warm_up) {
  auto net = bench::make_mlp();
  const auto run = [&](auto&& optimizer) {
    auto [model, fast] = setup(api, net, std::move(optimizer));
    return timed(steps, warm_up, [&](int count) { return api_loop(api, model, fast, batches, count); });
  };
  if (adamw) return run(torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-3)));
  return run(torch::optim::SGD(net->parameters(), 0.01));
}

bench::Measured measure(const std::string& name, const Batches& batches, int steps, int warm_up) {
  const auto space = name.find(' ');
  const bool adamw = name.substr(0, space) == "adamw";
  const std::string way = name.substr(space + 1);
  if (way == "accelerator") {
    muster::Accelerator accelerator;
    const auto setup = [](auto& api, auto& net, auto&& optimizer) { return api.prepare(net, std::move(optimizer)); };
    return through_api(accelerator, setup, adamw, batches, steps, warm_up);
  }
  if (way == "fabric") {
    muster::Fabric fabric;
    fabric.launch();
    const auto setup = [](auto& api, auto& net, auto&& optimizer) { return api.setup(net, std::move(optimizer)); };
    return through_api(fabric, setup, adamw, batches, steps, warm_up);
  }
  auto net = bench::make_mlp();
  if (way == "fused") {
    FusedByHand optimizer(net->parameters(), adamw);
    return timed(steps, warm_up, [&](int count) { return plain_loop(net, optimizer, batches, count); });
  }
  if (way != "raw") throw std::invalid_argument("unknown case");
  if (!adamw) {
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    return timed(steps, warm_up, [&](int count) { return plain_loop(net, optimizer, batches, count); });
  }
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  return timed(steps, warm_up, [&](int count) { return plain_loop(net, optimizer, batches, count); });
}

}  // namespace

// Without arguments it serves the driver. With "CASE STEPS" it runs so many steps once, for counting instructions.
int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 3) {
    const int steps = std::stoi(argv[2]);
    const auto batches = bench::make_batches(steps);
    std::printf("loss %.6f\n", measure(argv[1], batches, steps, 0).check);
    return 0;
  }
  const auto batches = bench::make_batches(kSteps);
  return bench::serve([&](const std::string& name) { return measure(name, batches, kSteps, kWarmUp); });
}
