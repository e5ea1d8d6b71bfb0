#pragma once

// The models of the benchmarks of training, as in peers/models.py: the same operators, names and order of construction.

#include <string>

#include <torch/torch.h>

namespace bench {

struct GPTShape {
  int64_t vocabulary, context, width, layers, heads;
  bool tied = false;  ///< the head has the weights of the tokens' embedding
};
inline constexpr GPTShape kGPT9M{8192, 256, 256, 6, 8}, kGPT124M{50304, 1024, 768, 12, 12, true},
    kGPT512{8192, 256, 512, 6, 8}, kTinyGPT{512, 32, 64, 2, 4, true};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GPTShape& shape) : heads(shape.heads) {
    const auto width = shape.width;
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    auto a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
                 .transpose(1, 2)
                 .reshape({batch, length, width});
    x = x + out(a);
    return x + down(torch::gelu(up(norm2(x))));
  }
  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

/// Takes tokens [batch, length + 1] and returns the loss of guessing each next token.
struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const GPTShape& shape = kGPT9M) {
    tokens = register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width));
    positions = register_module("positions", torch::nn::Embedding(shape.context, shape.width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < shape.layers; ++i) blocks->push_back(Block(shape));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})));
    if (shape.tied) return;
    head =
        register_module("head", torch::nn::Linear(torch::nn::LinearOptions(shape.width, shape.vocabulary).bias(false)));
  }
  torch::Tensor forward(torch::Tensor text) {
    auto given = text.slice(1, 0, -1), wanted = text.slice(1, 1);
    auto x = tokens(given) + positions(torch::arange(given.size(1), given.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    x = norm(x);
    x = head ? head(x) : torch::nn::functional::linear(x, tokens->weight);
    return torch::nn::functional::cross_entropy(x.flatten(0, 1), wanted.reshape({-1}));
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

inline torch::Tensor make_text(const GPTShape& shape, int64_t batch) {
  return torch::randint(0, shape.vocabulary, {batch, shape.context + 1}, torch::kLong);
}

inline torch::Tensor make_input(const std::string& name, int rank) {
  torch::manual_seed(100 + rank);
  return name == "gpt-9m" ? make_text(kGPT9M, 4) : torch::randn({32, 2048});
}

}  // namespace bench
