// Reads and writes files of Python by command, for python_files.py:
//   copy FROM TO                   load_python, then save_python
//   start RULE FROM TO             takes the model of FROM, trains it some steps by RULE, saves model and optimizer to
//   TO, and prints
//                                  the losses of the next steps
//   continue RULE FROM             takes model and optimizer of FROM and prints the losses of the next steps
#include <cstdio>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "muster/checkpoint/python.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/optim/optimizer_state.h"
#include "optim/fused.h"

namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

constexpr int kStepsBefore = 4, kStepsAfter = 3;

struct Net : nn::Module {
  Net() {
    embed = register_module("embed", nn::Linear(6, 8));
    layer = register_module(
        "layer", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)));
    norm = register_module("norm", nn::BatchNorm1d(8));
    head = register_module("head", nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(norm(layer(embed(x).unsqueeze(0)).squeeze(0))); }
  nn::Linear embed{nullptr}, head{nullptr};
  nn::TransformerEncoderLayer layer{nullptr};
  nn::BatchNorm1d norm{nullptr};
};

std::unique_ptr<optim::Optimizer> optimizer_of(const std::string& rule, Net& net) {
  std::vector<torch::Tensor> matrices, vectors;
  for (const auto& parameter : net.parameters()) (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  const auto groups = [&](auto options) {
    using Options = decltype(options);
    auto second = options;
    second.lr(options.lr() / 2);
    std::vector<optim::OptimizerParamGroup> both;
    both.emplace_back(matrices, std::make_unique<Options>(options));
    both.emplace_back(vectors, std::make_unique<Options>(second));
    return both;
  };
  const auto make = [&]<class Rule>(std::type_identity<Rule>, auto options) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<Rule>(groups(options), options);
  };
  if (rule == "SGD")
    return make(std::type_identity<optim::SGD>{}, optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
  if (rule == "Adam") return make(std::type_identity<optim::Adam>{}, optim::AdamOptions(0.01).amsgrad(true));
  if (rule == "Adagrad") return make(std::type_identity<optim::Adagrad>{}, optim::AdagradOptions(0.05).lr_decay(0.1));
  if (rule == "RMSprop")
    return make(std::type_identity<optim::RMSprop>{}, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  if (rule == "LBFGS")
    return std::make_unique<optim::LBFGS>(net.parameters(), optim::LBFGSOptions(0.5).max_iter(3).history_size(4));
  return make(std::type_identity<optim::AdamW>{}, optim::AdamWOptions(0.01).weight_decay(0.1));
}

torch::Tensor wave(int64_t rows, int64_t columns, double shift) {
  return torch::sin(torch::arange(rows * columns, torch::kDouble) * 0.37 + shift)
      .view({rows, columns})
      .to(torch::kFloat);
}

/// Steps, and prints the loss before each of them if asked.
void train(Net& net, optim::Optimizer& optimizer, bool fused, int first, int steps, bool print) {
  muster::optim::FusedStep fast(optimizer);
  for (int step = first; step < first + steps; ++step) {
    const auto x = wave(10, 6, step), y = wave(10, 2, step + 0.5);
    double before = 0;
    bool called = false;
    const auto closure = [&] {
      optimizer.zero_grad();
      auto loss = (net.forward(x) - y).pow(2).mean();
      loss.backward();
      if (!called) before = loss.item<double>();
      called = true;
      return loss;
    };
    if (fused) {
      closure();
      fast.note_backward();
      fast.step();
    } else {
      optimizer.step(closure);
    }
    if (print) std::printf("%.9g\n", before);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "", rule = argc > 2 ? argv[2] : "";
  try {
    if (command == "copy") {
      muster::save_python(muster::load_python(argv[2]), argv[3]);
      return 0;
    }
    Net net;
    const bool fused = rule == "AdamW fused";
    const auto optimizer = optimizer_of(fused ? "AdamW" : rule, net);
    const muster::State state = muster::load_python(argv[3]);
    muster::load_state_dict(net, state.at("model"));
    if (command == "continue") {
      muster::load_state_dict(*optimizer, state.at("optimizer"));
      train(net, *optimizer, fused, kStepsBefore, kStepsAfter, true);
      return 0;
    }
    train(net, *optimizer, fused, 0, kStepsBefore, false);
    muster::save_python(
        muster::State::Map{
            {"model", muster::state_dict(net)}, {"optimizer", muster::state_dict(*optimizer)}, {"step", kStepsBefore}},
        argv[4]);
    train(net, *optimizer, fused, kStepsBefore, kStepsAfter, true);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
