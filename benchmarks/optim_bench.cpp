// AdamW's step alone, one thread. Cases: "muster SIZE" through the Accelerator API, "torch SIZE" by
// torch::optim::AdamW itself.
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "protocol.h"

namespace {

using Shapes = std::vector<std::vector<int64_t>>;

struct BagImpl : torch::nn::Module {
  explicit BagImpl(const Shapes& shapes) {
    torch::manual_seed(0);
    for (const auto& shape : shapes)
      parameters_.push_back(register_parameter("p" + std::to_string(parameters_.size()), torch::randn(shape)));
  }
  // Its gradient is the parameter halved, so every element's step is its own.
  torch::Tensor forward() {
    auto loss = torch::zeros({});
    for (const auto& parameter : parameters_) loss = loss + parameter.square().sum() * 0.25;
    return loss;
  }
  double check() const { return parameters_.front().detach().abs().sum(torch::kDouble).item<double>(); }

 private:
  std::vector<torch::Tensor> parameters_;
};
TORCH_MODULE(Bag);

Shapes shapes_of(const std::string& size) {
  Shapes shapes;
  if (size == "67M in 4") return Shapes(4, {4096, 4096});
  if (size == "0.42M in 100") {
    for (int i = 0; i < 50; ++i) shapes.insert(shapes.end(), {{128, 64}, {128}});
    return shapes;
  }
  if (size != "11.6M in 146") throw std::invalid_argument("unknown size " + size);
  shapes = {{8192, 256}, {256, 256}};
  const Shapes block = {{768, 256},  {768}, {256, 256}, {256}, {1024, 256}, {1024},
                        {256, 1024}, {256}, {256},      {256}, {256},       {256}};
  for (int i = 0; i < 12; ++i) shapes.insert(shapes.end(), block.begin(), block.end());
  return shapes;
}

// One step, with gradients already there, and the check.
struct Stepper {
  std::function<void()> step;
  std::function<double()> check;
};

/// The peer's process never makes an Accelerator.
Stepper make_stepper(const std::string& who, const std::string& size) {
  Bag bag(shapes_of(size));
  const auto check = [bag] { return bag->check(); };
  if (who == "torch") {
    auto optimizer = std::make_shared<torch::optim::AdamW>(bag->parameters(), torch::optim::AdamWOptions(1e-3));
    bag->forward().backward();
    return {[optimizer] { optimizer->step(); }, check};
  }
  auto accelerator = std::make_shared<muster::Accelerator>();
  auto [model, optimizer] =
      accelerator->prepare(bag, torch::optim::AdamW(bag->parameters(), torch::optim::AdamWOptions(1e-3)));
  accelerator->backward(model());
  return {[accelerator, model, optimizer]() mutable { optimizer.step(); }, check};
}

}  // namespace

int main() {
  at::set_num_threads(1);
  std::map<std::string, Stepper> steppers;
  return bench::serve([&](const std::string& name) -> bench::Measured {
    const auto space = name.find(' ');
    const std::string size = name.substr(space + 1);
    if (!steppers.contains(name)) steppers.emplace(name, make_stepper(name.substr(0, space), size));
    const Stepper& stepper = steppers.at(name);
    const int steps = size.starts_with("67M") ? 3 : size.starts_with("11") ? 10 : 200;
    stepper.step();
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < steps; ++i) stepper.step();
    });
    return {.value = seconds / steps * 1e3, .check = stepper.check()};
  });
}
