#pragma once

// The models of the ddp benchmark, as in peers/models.py: the same operators, names and order of construction.

#include <string>

#include <torch/torch.h>

namespace bench {

inline constexpr int64_t kVocabulary = 8192, kContext = 256, kWidth = 256, kLayers = 6, kHeads = 8;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = qkv(norm1(x)).view({batch, length, 3, kHeads, width / kHeads}).permute({2, 0, 3, 1, 4});
    auto a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
                 .transpose(1, 2)
                 .reshape({batch, length, width});
    x = x + out(a);
    return x + down(torch::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

/// 9.0 million parameters. Takes tokens [batch, length + 1] and returns the loss of guessing each next token.
struct GPTImpl : torch::nn::Module {
  GPTImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_module("positions", torch::nn::Embedding(kContext, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < kLayers; ++i) blocks->push_back(Block());
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }
  torch::Tensor forward(torch::Tensor text) {
    auto given = text.slice(1, 0, -1), wanted = text.slice(1, 1);
    auto x = tokens(given) + positions(torch::arange(given.size(1)));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::nn::functional::cross_entropy(head(norm(x)).view({-1, kVocabulary}), wanted.reshape({-1}));
  }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(GPT);

/// Layers of 2048 x 2048: 4.2 million parameters each and little arithmetic, so communication counts.
struct WideImpl : torch::nn::Module {
  explicit WideImpl(int count = 4) {
    layers = register_module("layers", torch::nn::Sequential());
    for (int i = 0; i < count; ++i) {
      layers->push_back(torch::nn::Linear(2048, 2048));
      layers->push_back(torch::nn::ReLU());
    }
  }
  torch::Tensor forward(torch::Tensor x) { return layers->forward(x).square().mean(); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Wide);

/// Sixteen of them: 67 million parameters.
struct DeepImpl : WideImpl {
  DeepImpl() : WideImpl(16) {}
};
TORCH_MODULE(Deep);

inline torch::Tensor make_input(const std::string& name, int rank) {
  torch::manual_seed(100 + rank);
  return name == "gpt-9m" ? torch::randint(0, kVocabulary, {4, kContext + 1}, torch::kLong) : torch::randn({32, 2048});
}

}  // namespace bench
