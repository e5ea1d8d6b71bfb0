// Forwards of a net with 66 operators in two blocks, for recorder.sh. Arguments: plain or recorded; how many forwards.
#include <cstdlib>
#include <optional>
#include <string>

#include <torch/torch.h>

#include "graph/blocks.h"
#include "graph/recording.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(8, 8))}, b{register_module("b", torch::nn::Linear(8, 8))};
  at::Tensor forward(const at::Tensor& x) {
    auto y = x;
    for (auto* layer : {&a, &b}) {
      y = (*layer)(y);
      for (int i = 0; i < 8; ++i) y = torch::gelu(torch::tanh(y) * 0.5) + x;
    }
    return y;
  }
};
TORCH_MODULE(Net);

}  // namespace

int main(int, char** argv) {
  at::set_num_threads(1);
  Net net;
  const auto x = torch::ones({4, 8});
  muster::graph::install_recorder();  // for both ways: without a recording it must cost nothing
  const muster::graph::Blocks blocks(*net, {.blocks = {"a|b"}, .check = false}, {});
  const bool recorded = std::string(argv[1]) == "recorded";
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    std::optional<muster::graph::Recording> recording;
    if (recorded) recording.emplace(blocks);
    net->forward(x);
  }
}
