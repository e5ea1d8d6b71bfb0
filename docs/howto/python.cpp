// The code of python.md. usage: howto_python FROM TO
#include <cstdio>

#include <muster/checkpoint/python.h>
#include <muster/checkpoint/state_dict.h>
#include <muster/optim/optimizer_state.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    body = register_module("body", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    head = register_module("head", torch::nn::Linear(16, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::relu(norm(body(x)))); }
  torch::nn::Linear body{nullptr}, head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

static torch::Tensor wave(int64_t rows, int64_t columns, double shift) {
  return torch::sin(torch::arange(rows * columns, torch::kDouble) * 0.37 + shift)
      .view({rows, columns})
      .to(torch::kFloat);
}

int main(int, char** argv) {
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));

  const muster::State saved =
      muster::load_python(argv[1]);  // torch.save({"model": ..., "optimizer": ..., "step": ...}, path)
  muster::load_state_dict(*net, saved.at("model"));
  muster::load_state_dict(adamw, saved.at("optimizer"));
  const auto first = saved.at("step").as<int>();

  for (int step = first; step < first + 6; ++step) {
    if (step == first + 3)
      muster::save_python(
          muster::State::Map{
              {"model", muster::state_dict(*net)}, {"optimizer", muster::state_dict(adamw)}, {"step", step}},
          argv[2]);
    adamw.zero_grad();
    auto loss = (net(wave(10, 6, step)) - wave(10, 2, step + 0.5)).pow(2).mean();
    loss.backward();
    adamw.step();
    std::printf("%.9g\n", loss.item<double>());
  }
}
