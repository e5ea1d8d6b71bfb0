// large_job STRATEGY STEPS: a transformer of 400 million parameters learns one line of bytes by heart. Prints a loss a
// step, and what memory it took.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <torch/torch.h>

#include "muster/accelerator.h"

namespace {

namespace nn = torch::nn;
constexpr int64_t kWidth = 1024, kHeads = 16, kLayers = 32, kLength = 48;

struct BlockImpl : nn::Module {
  nn::LayerNorm first{register_module("first", nn::LayerNorm(nn::LayerNormOptions({kWidth})))},
      second{register_module("second", nn::LayerNorm(nn::LayerNormOptions({kWidth})))};
  nn::Linear three{register_module("three", nn::Linear(kWidth, 3 * kWidth))},
      joined{register_module("joined", nn::Linear(kWidth, kWidth))};
  nn::Linear up{register_module("up", nn::Linear(kWidth, 4 * kWidth))},
      down{register_module("down", nn::Linear(4 * kWidth, kWidth))};

  at::Tensor forward(at::Tensor x) {
    const auto heads =
        three(first(x)).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, /*is_causal=*/true);
    x = x + joined(seen.transpose(1, 2).reshape(x.sizes()));
    return x + down(torch::gelu(up(second(x))));
  }
};
TORCH_MODULE(Block);

struct LargeImpl : nn::Module {
  nn::Embedding bytes{register_module("bytes", nn::Embedding(256, kWidth))},
      places{register_module("places", nn::Embedding(kLength, kWidth))};
  nn::Sequential blocks{register_module("blocks", nn::Sequential())};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))};
  nn::Linear head{register_module("head", nn::Linear(kWidth, 256))};
  LargeImpl() {
    for (int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block());
  }
  at::Tensor forward(const at::Tensor& text) {
    return head(norm(blocks->forward(bytes(text) + places(torch::arange(kLength)))));
  }
};
TORCH_MODULE(Large);

/// "VmRSS: 12 kB" of this process's status, in MiB.
long mebibytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (long kibibytes = 0; word == field + ":" && status >> kibibytes) return kibibytes / 1024;
  return 0;
}

}  // namespace

int main(int, char** argv) {
  torch::manual_seed(1);
  muster::Accelerator accelerator({.strategy = muster::Strategy(argv[1])});
  Large net;
  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-4)));
  if (accelerator.is_main_process()) std::printf("parameters %lld\n", static_cast<long long>(parameters));

  const auto text = (torch::arange(kLength + 1).view({1, -1}) * 7 + 31 * accelerator.process_index()) % 256;
  const auto inputs = text.slice(1, 0, kLength), targets = text.slice(1, 1);
  for (int step = 0; step < std::atoi(argv[2]); ++step) {
    const auto loss = torch::cross_entropy_loss(model(inputs).view({-1, 256}), targets.reshape(-1));
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    const auto mean = accelerator.reduce(loss.detach(), "mean").item<double>();
    if (accelerator.is_main_process()) std::printf("loss %.4f\n", mean), std::fflush(stdout);
  }
  accelerator.print("data {} MiB, resident {} MiB, shared {} MiB", mebibytes("VmData"), mebibytes("VmHWM"),
                    mebibytes("RssShmem"));
  return 0;
}
