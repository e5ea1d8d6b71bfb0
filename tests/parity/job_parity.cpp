// A job that Python takes up, and one that it hands over; see job_parity.py.
// usage: job_parity save FOLDER | resume FILE
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/python.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/optim/optimizer_state.h"

struct NetImpl : torch::nn::Module {
  // In Python's order, by which an optimizer's state knows its parameters.
  torch::nn::Linear body{register_module("body", torch::nn::Linear(6, 16))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(16))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(16, 2))};
  at::Tensor forward(at::Tensor x) { return head(torch::relu(norm(body(x)))); }
};
TORCH_MODULE(Net);

at::Tensor wave(int64_t rows, int64_t columns, double shift) {
  return torch::sin(torch::arange(rows * columns, torch::kDouble) * 0.37 + shift)
      .view({rows, columns})
      .to(torch::kFloat);
}

int main(int, char** words) {
  const std::string mode = words[1];
  muster::Accelerator accelerator;
  torch::manual_seed(5);
  Net net;
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  if (mode == "resume") {
    const auto saved = muster::load_python(words[2]);
    muster::load_state_dict(*net, saved.at("model"));
    muster::load_state_dict(adam, saved.at("optimizer"));
  }
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto train = [&, &model = model, &optimizer = optimizer](int first, int steps, bool tell) {
    for (int step = first; step < first + steps; ++step) {
      optimizer.zero_grad();
      const auto loss = (model(wave(10, 6, step)) - wave(10, 2, step + 0.5)).pow(2).mean();
      accelerator.backward(loss);
      optimizer.step();
      if (tell && accelerator.is_main_process()) std::printf("%.9g\n", loss.item<double>());
    }
  };
  if (mode == "save") {
    train(0, 5, false);
    accelerator.save_state(words[2]);
  }
  train(5, 3, true);
}
