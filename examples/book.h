// A book to learn byte by byte, and the transformer that learns it.
#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/parallel/wrap.h>
#include <torch/torch.h>

constexpr int64_t kBytes = 256, kContext = 64, kHeads = 4, kBlocks = 6;

// The book in windows of kContext + 1 bytes: each byte is to be guessed from those before it.
class Book {
 public:
  explicit Book(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<uint8_t> text((std::istreambuf_iterator<char>(file)), {});
    if (text.size() <= kContext) throw std::runtime_error("there is no book at " + path);
    text_ = torch::tensor(text);
  }
  torch::Tensor get(int64_t index) const {
    const auto begin = index * kContext;
    return text_.slice(0, begin, begin + kContext + 1).to(torch::kLong);
  }
  int64_t size() const { return (text_.size(0) - 1) / kContext; }

 private:
  torch::Tensor text_;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : width(width) {}
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1);
    auto parts = qkv(norm1(x)).view({batch, length, 3, kHeads, width / kHeads}).permute({2, 0, 3, 1, 4});
    auto heard = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + out(heard.transpose(1, 2).reshape({batch, length, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }
  int64_t width;
  torch::nn::LayerNorm norm1{register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))};
  torch::nn::Linear qkv{register_module("qkv", torch::nn::Linear(width, 3 * width))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(width, width))};
  torch::nn::LayerNorm norm2{register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(width, 4 * width))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(4 * width, width))};
};
TORCH_MODULE(Block);

// The loss of guessing each next byte. Where nothing is wrapped, the repeated blocks become units by themselves.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl(int64_t width, bool wrapped) : width(width) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(wrapped ? muster::wrap(Block(width)) : Block(width));
  }
  torch::Tensor forward(torch::Tensor text) {
    auto given = text.slice(1, 0, kContext), wanted = text.slice(1, 1);
    auto x = bytes(given) + places(torch::arange(kContext, given.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::nn::functional::cross_entropy(head(norm(x)).flatten(0, 1), wanted.flatten());
  }
  int64_t width;
  torch::nn::Embedding bytes{register_module("bytes", torch::nn::Embedding(kBytes, width))};
  torch::nn::Embedding places{register_module("places", torch::nn::Embedding(kContext, width))};
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(width, kBytes))};
};
TORCH_MODULE(Reader);
