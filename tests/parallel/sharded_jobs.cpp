#include "parallel/sharded_jobs.h"

#include <mutex>
#include <utility>

#include <ATen/autocast_mode.h>

namespace muster::parallel::jobs {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

/// Numbers that depend on nothing but step and rank.
Tensor wave(at::IntArrayRef sizes, int step, int rank, const nn::Module& module) {
  const auto numel = c10::multiply_integers(sizes);
  const auto values = torch::sin(torch::arange(numel, at::kDouble) * 0.37 + step * 1.3 + rank * 0.71).view(sizes);
  return values.to(module.parameters().front().scalar_type());
}

Tensor words(at::IntArrayRef sizes, int64_t vocabulary, int step, int rank) {
  return (torch::arange(c10::multiply_integers(sizes)).view(sizes) * (step + 3) + rank * 7 + step) % vocabulary;
}

/// Weights every output differently, so that no gradient is zero by symmetry.
Tensor loss_of(const Tensor& output) {
  const auto flat = output.reshape({-1});
  return (flat * torch::cos(torch::arange(flat.numel(), flat.options()) * 0.21)).sum() / flat.numel() +
         0.01 * flat.square().mean();
}

/// Makes the module of a holder; the process has one generator, so makers take turns.
template <class Make>
auto made(Make make) {
  return [make](at::ScalarType dtype) -> std::shared_ptr<nn::Module> {
    static std::mutex mutex;
    std::scoped_lock lock(mutex);
    torch::manual_seed(3);
    auto module = make().ptr();
    module->to(dtype);
    return module;
  };
}

/// `use` takes the holder's module and a wave of these sizes.
template <class Make, class Use>
Job on_wave(std::string name, Make make, std::vector<int64_t> sizes, Use use) {
  using Impl = typename decltype(make())::ContainedType;
  return {std::move(name), made(make), [sizes, use](nn::Module& module, int step, int rank) {
            return loss_of(use(dynamic_cast<Impl&>(module), wave(sizes, step, rank, module)));
          }};
}

template <class Make, class Use>
Job on_words(std::string name, Make make, std::vector<int64_t> sizes, int64_t vocabulary, Use use) {
  using Impl = typename decltype(make())::ContainedType;
  return {std::move(name), made(make), [sizes, vocabulary, use](nn::Module& module, int step, int rank) {
            return loss_of(use(dynamic_cast<Impl&>(module), words(sizes, vocabulary, step, rank)));
          }};
}

Job under_autocast(Job job) {
  job.name += " under bfloat16 autocast";
  job.only_float = true;
  job.loss = [plain = std::move(job.loss)](nn::Module& module, int step, int rank) {
    struct Scope {
      Scope() {
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        at::autocast::set_autocast_enabled(at::kCPU, true);
      }
      ~Scope() {
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
    } scope;
    return plain(module, step, rank).to(at::kFloat);
  };
  return job;
}

const auto kForward = [](auto& module, const Tensor& x) { return module.forward(x); };
const auto kFirst = [](auto& module, const Tensor& x) { return std::get<0>(module.forward(x)); };

/// Sizes that are no multiples of 64, and one layer of a few elements.
struct MlpImpl : nn::Module {
  MlpImpl() {
    layers = register_module(
        "layers", nn::Sequential(nn::Linear(10, 37), nn::GELU(), nn::Linear(37, 37), nn::GELU(), nn::Linear(37, 3)));
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};
TORCH_MODULE(Mlp);

struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    first = register_module("first", nn::Conv2d(3, 8, 3));
    norm = register_module("norm", nn::BatchNorm2d(8));
    second = register_module("second", nn::Conv2d(8, 5, 3));
    second->weight.set_data(second->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  Tensor forward(const Tensor& x) { return second(torch::relu(norm(first(x)))).mean({2, 3}); }
  nn::Conv2d first{nullptr}, second{nullptr};
  nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(ConvNet);

/// The output layer uses the embedding's weight.
struct TiedImpl : nn::Module {
  TiedImpl() {
    embed = register_module("embed", nn::Embedding(29, 16));
    const auto layer = nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(50).dropout(0.0);
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 2)));
    head = register_parameter("head", embed->weight);
  }
  Tensor forward(const Tensor& x) { return F::linear(encoder(embed(x)), head); }
  nn::Embedding embed{nullptr};
  nn::TransformerEncoder encoder{nullptr};
  Tensor head;
};
TORCH_MODULE(Tied);

struct TwiceImpl : nn::Module {
  TwiceImpl() {
    in = register_module("in", nn::Linear(10, 20));
    shared = register_module("shared", nn::Linear(20, 20));
    out = register_module("out", nn::Linear(20, 4));
  }
  Tensor forward(const Tensor& x) { return out(torch::tanh(shared(torch::tanh(shared(in(x)))))); }
  nn::Linear in{nullptr}, shared{nullptr}, out{nullptr};
};
TORCH_MODULE(Twice);

/// A frozen layer, and a frozen bias within a trained one.
struct FrozenImpl : nn::Module {
  FrozenImpl() {
    body = register_module("body", nn::Sequential(nn::Linear(10, 20), nn::Tanh(), nn::Linear(20, 20), nn::Tanh()));
    head = register_module("head", nn::Linear(20, 4));
    for (auto& parameter : body[2]->parameters()) parameter.set_requires_grad(false);
    head->bias.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) { return head(body->forward(x)); }
  nn::Sequential body{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Frozen);

/// Parameters used by operators of many kinds.
struct MixedUseImpl : nn::Module {
  MixedUseImpl() {
    w = register_parameter("w", torch::randn({16, 16}));
    b = register_parameter("b", torch::randn({16}));
  }
  Tensor forward(const Tensor& x) {
    auto y = torch::einsum("abc,cd->abd", {x, w}) + b;
    y = torch::where(y > 0, y, y * w.diagonal());
    y = torch::cat({y, w.unsqueeze(0).narrow(1, 0, 4).expand({5, 4, 16})}, 0);
    y = y / (w.norm() + b.abs().max()) + torch::fft::irfft(torch::fft::rfft(b), 16);
    y = y + torch::index_select(w, 0, torch::tensor({0, 1, 2, 3})) +
        torch::linalg_solve(w + torch::eye(16, w.options()) * 9, b);
    y = y * torch::softmax(w[0].view({4, 4}).t().reshape({16}), 0);
    return y + w.index({torch::indexing::Slice(0, 4)}).clone().add_(b);
  }
  Tensor w, b;
};
TORCH_MODULE(MixedUse);

struct WeightNormImpl : nn::Module {
  WeightNormImpl() {
    v = register_parameter("v", torch::randn({8, 16}));
    g = register_parameter("g", torch::randn({8, 1}));
  }
  Tensor forward(const Tensor& x) { return F::linear(x, torch::_weight_norm(v, g, 0)); }
  Tensor v, g;
};
TORCH_MODULE(WeightNorm);

Tensor attention(const Tensor& projected) {
  const auto q = projected.view({5, 4, 3, 2, 8}).permute({2, 0, 3, 1, 4});
  return at::scaled_dot_product_attention(q[0], q[1], q[2], {}, 0.0, true);
}

nn::Transformer small_transformer(int64_t layers) {
  return nn::Transformer(
      nn::TransformerOptions(16, 4).num_encoder_layers(layers).num_decoder_layers(layers).dim_feedforward(24).dropout(
          0.0));
}

std::vector<Job> recurrent_and_norm_layers() {
  const std::vector<int64_t> sequence{5, 4, 16}, image{2, 3, 9, 9};
  return {
      on_wave(
          "lstm", [] { return nn::LSTM(nn::LSTMOptions(16, 7).num_layers(2).bidirectional(true)); }, sequence, kFirst),
      on_wave(
          "conv transpose", [] { return nn::ConvTranspose2d(3, 8, 3); }, image, kForward),
      on_wave(
          "batch norm", [] { return nn::BatchNorm2d(3); }, image, kForward),
      on_wave(
          "layer norm", [] { return nn::LayerNorm(nn::LayerNormOptions({16})); }, sequence, kForward),
      on_wave(
          "group norm", [] { return nn::GroupNorm(2, 4); }, sequence, kForward),
      on_words(
          "embedding", [] { return nn::Embedding(10, 6); }, {3}, 10, kForward),
      on_words(
          "embedding bag", [] { return nn::EmbeddingBag(10, 6); }, {4}, 10,
          [](auto& m, const Tensor& x) {
            return m.forward(x, torch::tensor({0, 2}));
          }),
      on_wave(
          "gru", [] { return nn::GRU(16, 7); }, sequence, kFirst),
      on_wave(
          "rnn", [] { return nn::RNN(16, 7); }, sequence, kFirst),
      on_wave(
          "lstm cell", [] { return nn::LSTMCell(16, 7); }, {4, 16}, kFirst),
      on_wave(
          "attention", [] { return nn::MultiheadAttention(16, 4); }, sequence,
          [](auto& m, const Tensor& x) { return std::get<0>(m.forward(x, x, x)); }),
      on_wave(
          "attention of unequal widths",
          [] { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(16, 4).kdim(8).vdim(8)); }, sequence,
          [](auto& m, const Tensor& x) { return std::get<0>(m.forward(x, x.narrow(2, 0, 8), x.narrow(2, 0, 8))); }),
  };
}

std::vector<Job> unusual_layers() {
  const std::vector<int64_t> sequence{5, 4, 16}, image{2, 3, 9, 9};
  return {
      on_wave(
          "bilinear", [] { return nn::Bilinear(16, 16, 3); }, sequence,
          [](auto& m, const Tensor& x) { return m.forward(x, x); }),
      on_wave(
          "prelu", [] { return nn::PReLU(); }, sequence, kForward),
      on_wave(
          "adaptive softmax",
          [] {
            return nn::AdaptiveLogSoftmaxWithLoss(16, 20, std::vector<int64_t>{5, 10});
          },
          {4, 16},
          [](auto& m, const Tensor& x) {
            return m.forward(x, torch::tensor({1, 7, 12, 19})).output;
          }),
      on_wave(
          "sequential",
          [] {
            return nn::Sequential(nn::Linear(16, 8), nn::ReLU(), nn::LayerNorm(nn::LayerNormOptions({8})),
                                  nn::Linear(8, 2));
          },
          sequence, kForward),
      on_wave(
          "mixed use", [] { return MixedUse(); }, sequence, kForward),
      on_wave(
          "weight norm", [] { return WeightNorm(); }, sequence, kForward),
      on_wave(
          "scaled dot product", [] { return nn::Linear(16, 48); }, sequence,
          [](auto& m, const Tensor& x) { return attention(m.forward(x)); }),
      on_wave(
          "channels last",
          [] {
            nn::Conv2d convolution(3, 8, 3);
            convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
            return convolution;
          },
          image, [](auto& m, const Tensor& x) { return m.forward(x.contiguous(at::MemoryFormat::ChannelsLast)); }),
  };
}

}  // namespace

std::vector<Job> networks() {
  return {on_wave(
              "mlp", [] { return Mlp(); }, {6, 10}, kForward),
          on_wave(
              "conv net with batch norm", [] { return ConvNet(); }, {2, 3, 9, 9}, kForward),
          on_words(
              "transformer with tied embeddings", [] { return Tied(); }, {6, 4}, 29, kForward),
          on_wave(
              "module used twice", [] { return Twice(); }, {6, 10}, kForward),
          on_wave(
              "frozen parts", [] { return Frozen(); }, {6, 10}, kForward)};
}

std::vector<Job> single_modules() {
  const std::vector<int64_t> sequence{5, 4, 16}, image{2, 3, 9, 9};
  const auto linear = on_wave(
      "linear", [] { return nn::Linear(16, 8); }, sequence, kForward);
  const auto convolution = on_wave(
      "conv2d", [] { return nn::Conv2d(3, 8, 3); }, image, kForward);
  const auto transformer = on_wave(
      "transformer", [] { return small_transformer(1); }, sequence,
      [](auto& m, const Tensor& x) { return m.forward(x, x); });
  std::vector<Job> all{linear, convolution, transformer};
  for (const auto& more : {recurrent_and_norm_layers(), unusual_layers()})
    all.insert(all.end(), more.begin(), more.end());
  for (const auto& job : {linear, convolution, transformer}) all.push_back(under_autocast(job));
  return all;
}

}  // namespace muster::parallel::jobs
