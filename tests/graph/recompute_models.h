#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "muster/graph/options.h"

/// Models whose activations are made again, each hard in its own way.
namespace muster::testing {

/// A model, a batch for it, and what its blocks are.
struct RecomputeCase {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(torch::nn::Module& module, const at::Tensor& x)> forward;
  std::vector<int64_t> batch;  // sizes; the first dimension of which are the samples
  RecomputeOptions options;
};

struct RecomputeBlockImpl : torch::nn::Module {
  torch::nn::Linear in, out;
  torch::nn::LayerNorm norm;
  explicit RecomputeBlockImpl(int64_t width)
      : in(register_module("in", torch::nn::Linear(width, 2 * width))),
        out(register_module("out", torch::nn::Linear(2 * width, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{width}))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(x + out(torch::gelu(in(x)))); }
};
TORCH_MODULE(RecomputeBlock);

struct StackImpl : torch::nn::Module {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head;
  StackImpl(int64_t width, int64_t depth) : head(register_module("head", torch::nn::Linear(width, 3))) {
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(RecomputeBlock(width));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = block->as<RecomputeBlockImpl>()->forward(x);
    return head(x);
  }
};
TORCH_MODULE(Stack);

struct ConvBlockImpl : torch::nn::Module {
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  ConvBlockImpl(int64_t in, int64_t out)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x) {
    auto y = norm(conv(x));
    if (x.size(1) == y.size(1)) y += x;  // an in-place residual
    torch::relu_(y);
    return torch::dropout(y, 0.2, is_training());
  }
};
TORCH_MODULE(ConvBlock);

struct ConvNetImpl : torch::nn::Module {
  torch::nn::Sequential blocks{
      register_module("blocks", torch::nn::Sequential(ConvBlock(3, 6), ConvBlock(6, 6), ConvBlock(6, 6)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(6, 3))};
  at::Tensor forward(const at::Tensor& x) { return head(blocks->forward(x).mean({2, 3})); }
};
TORCH_MODULE(ConvNet);

struct CellNetImpl : torch::nn::Module {
  torch::nn::LSTMCell cell{register_module("cell", torch::nn::LSTMCell(8, 8))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 3))};
  at::Tensor forward(const at::Tensor& x) {
    auto state = std::make_tuple(torch::zeros({x.size(0), 8}, x.options()), torch::zeros({x.size(0), 8}, x.options()));
    for (int64_t t = 0; t < x.size(1); ++t) state = cell(x.select(1, t), state);
    return head(std::get<0>(state));
  }
};
TORCH_MODULE(CellNet);

/// One block that is called three times.
struct SharedNetImpl : torch::nn::Module {
  torch::nn::TransformerEncoderLayer layer{
      register_module("layer", torch::nn::TransformerEncoderLayer(
                                   torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 3))};
  at::Tensor forward(const at::Tensor& x) {
    auto y = x.transpose(0, 1);
    for (int i = 0; i < 3; ++i) y = layer(y);
    return head(y.mean(0));
  }
};
TORCH_MODULE(SharedNet);

/// Two branches whose operators alternate.
struct BranchesImpl : torch::nn::Module {
  torch::nn::Linear a1, a2, b1, b2, head;
  BranchesImpl()
      : a1(nullptr), a2(nullptr), b1(nullptr), b2(nullptr), head(register_module("head", torch::nn::Linear(8, 3))) {
    auto left = std::make_shared<torch::nn::Module>(), right = std::make_shared<torch::nn::Module>();
    a1 = left->register_module("one", torch::nn::Linear(8, 8));
    a2 = left->register_module("two", torch::nn::Linear(8, 8));
    b1 = right->register_module("one", torch::nn::Linear(8, 8));
    b2 = right->register_module("two", torch::nn::Linear(8, 8));
    register_module("left", left);
    register_module("right", right);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto left = torch::tanh(a1(x));
    auto right = torch::sigmoid(b1(x));
    left = torch::tanh(a2(left * right));
    right = torch::sigmoid(b2(right + left));
    return head(left * right);
  }
};
TORCH_MODULE(Branches);

/// Sends each sample to one of two experts, by its values.
struct RouterImpl : torch::nn::Module {
  torch::nn::Linear gate{register_module("gate", torch::nn::Linear(8, 2))};
  RecomputeBlock one{register_module("one", RecomputeBlock(8))}, two{register_module("two", RecomputeBlock(8))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 3))};
  at::Tensor forward(const at::Tensor& x) {
    const auto scores = torch::softmax(gate(x), 1);
    const auto first = scores.select(1, 0) > scores.select(1, 1);
    const auto to_one = first.nonzero().flatten(), to_two = first.logical_not().nonzero().flatten();
    auto out = torch::zeros_like(x);
    out = out.index_add(0, to_one, one(x.index_select(0, to_one)));
    out = out.index_add(0, to_two, two(x.index_select(0, to_two)));
    return head(out * scores.amax(1, /*keepdim=*/true));
  }
};
TORCH_MODULE(Router);

/// x * exp(x), with a backward of its own.
struct XExp : torch::autograd::Function<XExp> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const auto e = x.clamp(-4, 4).exp();
    context->save_for_backward({x, e});
    return x * e;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * (saved[1] + saved[0] * saved[1])};
  }
};

struct CustomBlockImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(8, 8))},
      out{register_module("out", torch::nn::Linear(8, 8))};
  at::Tensor forward(const at::Tensor& x) { return x + out(XExp::apply(torch::tanh(in(x)))); }
};
TORCH_MODULE(CustomBlock);

template <class Impl>
RecomputeCase recompute_case(std::shared_ptr<Impl> module, std::vector<int64_t> batch,
                             std::vector<std::string> blocks) {
  return {std::move(module),
          [](torch::nn::Module& net, const at::Tensor& x) { return net.as<Impl>()->forward(x); },
          std::move(batch),
          {.blocks = std::move(blocks)}};
}

struct NamedRecomputeCase {
  const char* name;
  std::function<RecomputeCase()> make;
};

inline std::vector<NamedRecomputeCase> recompute_cases() {
  return {
      {"mlp",
       [] {
         return recompute_case(Stack(8, 3).ptr(), {6, 8}, {"RecomputeBlock"});
       }},
      {"conv",
       [] {
         return recompute_case(ConvNet().ptr(), {6, 3, 7, 7}, {"ConvBlock"});
       }},
      {"cell",
       [] {
         return recompute_case(CellNet().ptr(), {6, 5, 8}, {"LSTMCell"});
       }},
      {"shared",
       [] {
         return recompute_case(SharedNet().ptr(), {6, 5, 8}, {"layer"});
       }},
      {"branches",
       [] {
         return recompute_case(Branches().ptr(), {6, 8}, {"left", "right"});
       }},
      {"router",
       [] {
         return recompute_case(Router().ptr(), {6, 8}, {"one|two"});
       }},
      {"function", [] {
         auto net = std::make_shared<torch::nn::SequentialImpl>(CustomBlock(), CustomBlock(), torch::nn::Linear(8, 3));
         RecomputeCase one{
             net,
             [](torch::nn::Module& m, const at::Tensor& x) { return m.as<torch::nn::SequentialImpl>()->forward(x); },
             {6, 8},
             {.blocks = {"CustomBlock"}}};
         return one;
       }}};
}

}  // namespace muster::testing
