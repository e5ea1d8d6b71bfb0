// For what LibTorch's own operators make the host wait; docs/howto/devices.md lists them.
#include <functional>
#include <string>
#include <vector>

#include <torch/headeronly/version.h>

#include "simulated.h"

namespace muster::sim {
namespace {

// LibTorch 2.15 takes masked_fill_ where a mask puts one number.
constexpr bool kNumbersByMaskWait = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15;

namespace nn = torch::nn;
namespace F = torch::nn::functional;

/// What one call waits for: "item: 1, copy to the host: 2".
std::string waits_of(const std::function<void()>& call) {
  reset_stats();
  call();
  std::string text;
  for (const auto& [cause, count] : stats().host_waits)
    text += (text.empty() ? "" : ", ") + cause + ": " + std::to_string(count);
  return text;
}

using Step = std::function<void()>;
struct Call {
  std::string what;
  std::function<Step(const at::Tensor& x, const at::Tensor& labels)> prepare;
  std::string waits;
};

void backward(const at::Tensor& y) { y.sum().backward(); }

/// The layer is on the device before the step.
template <class Layer, class F>
Step with_layer(Layer layer, const at::Tensor& x, F f) {
  layer->to(x.device());
  return [=]() mutable { f(layer); };
}

/// What a step of training may hold, beside sums and products.
std::vector<Call> layers_of_sequences() {
  return {
      {"multi-head attention",
       [](auto& x, auto&) {
         return with_layer(nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2)), x, [x](auto& layer) {
           const auto q = x.view({6, 1, 4});
           backward(std::get<0>(layer(q, q, q)));
         });
       },
       "aten::equal: 2"},
      {"scaled_dot_product_attention",
       [](auto& x, auto&) {
         return [q = x.detach().view({1, 1, 6, 4}).requires_grad_()] {
           backward(at::scaled_dot_product_attention(q, q, q));
         };
       },
       ""},
      {"LSTM",
       [](auto& x, auto&) {
         return with_layer(nn::LSTM(nn::LSTMOptions(4, 5)), x,
                           [x](auto& layer) { backward(std::get<0>(layer(x.unsqueeze(0)))); });
       },
       ""},
      {"GRU",
       [](auto& x, auto&) {
         return with_layer(nn::GRU(nn::GRUOptions(4, 5)), x,
                           [x](auto& layer) { backward(std::get<0>(layer(x.unsqueeze(0)))); });
       },
       ""},
  };
}

std::vector<Call> other_layers() {
  return {
      {"convolution, batch norm and pooling",
       [](auto& x, auto&) {
         const nn::Sequential net(nn::Conv1d(nn::Conv1dOptions(2, 3, 3).padding(1)), nn::BatchNorm1d(3), nn::ReLU(),
                                  nn::MaxPool1d(2), nn::AdaptiveAvgPool1d(1));
         return with_layer(net, x, [x](auto& layers) { backward(layers->forward(x.view({2, 2, 6}))); });
       },
       ""},
      {"embedding",
       [](auto& x, auto& labels) {
         return with_layer(nn::Embedding(5, 4), x, [labels](auto& layer) { backward(layer(labels)); });
       },
       ""},
      {"dropout, layer norm, softmax and cross entropy",
       [](auto& x, auto& labels) {
         return [x = x.detach().requires_grad_(), labels] {
           const auto y = F::layer_norm(F::dropout(x), F::LayerNormFuncOptions({4}));
           backward(F::cross_entropy(y.softmax(1), labels));
         };
       },
       ""},
      {"ctc_loss",
       [](auto& x, auto& labels) {
         return [x = x.detach().requires_grad_(), labels] {
           const auto y = x.log_softmax(1).view({6, 1, 4});
           const auto target = labels.slice(0, 0, 2).view({1, 2}) % 3 + 1;
           backward(F::ctc_loss(y, target, torch::tensor({6}), torch::tensor({2})));
         };
       },
       "copy to the device: 1"},
      {"torch::nn::utils::clip_grad_norm_",
       [](auto& x, auto&) {
         return [w = x.detach().clone().requires_grad_()] {
           backward(w);
           nn::utils::clip_grad_norm_({w}, 1.0);
         };
       },
       "item: 1"},
  };
}

template <class F>
Call operation(std::string what, F f, std::string waits) {
  return {std::move(what), [f](auto& x, auto& labels) { return [=] { f(x, labels); }; }, std::move(waits)};
}

/// Values that the host reads, and shapes that depend on values.
std::vector<Call> operations() {
  return {
      operation(
          "item()", [](auto& x, auto&) { (void)x.sum().template item<float>(); }, "item: 1"),
      operation(
          "cpu()", [](auto& x, auto&) { (void)x.cpu(); }, "copy to the host: 1"),
      operation(
          "to(device)", [](auto& x, auto&) { (void)torch::ones({3}).to(x.device()); }, "copy to the device: 1"),
      operation(
          "tensor of numbers",
          [](auto& x, auto&) {
            (void)torch::tensor({1, 2}, x.options());
          },
          "copy to the device: 1"),
      operation(
          "equal", [](auto& x, auto&) { (void)torch::equal(x, x + 0); }, "aten::equal: 1"),
      operation(
          "allclose", [](auto& x, auto&) { (void)torch::allclose(x, x); }, "item: 1"),
      operation(
          "is_nonzero", [](auto& x, auto&) { (void)x.sum().is_nonzero(); }, "item: 1"),
      operation(
          "nonzero", [](auto& x, auto&) { (void)x.nonzero(); }, "aten::nonzero: 1"),
      operation(
          "where(condition)", [](auto& x, auto&) { (void)torch::where(x > 0); }, "aten::nonzero: 1"),
      operation(
          "where of three", [](auto& x, auto&) { (void)torch::where(x > 0, x, -x); }, ""),
      operation(
          "masked_select", [](auto& x, auto&) { (void)x.masked_select(x > 0); }, "aten::masked_select: 1"),
      operation(
          "masked_fill", [](auto& x, auto&) { (void)x.masked_fill(x > 0, 0.0); }, ""),
      operation(
          "index by a mask", [](auto& x, auto&) { (void)x.index({x > 0}); }, "aten::index: 1, aten::nonzero: 1"),
      operation(
          "index by numbers", [](auto& x, auto& labels) { (void)x.index({labels}); }, ""),
      operation(
          "index_put_ of a number by a mask", [](auto& x, auto&) { x.clone().index_put_({x > 0}, 0.0); },
          kNumbersByMaskWait ? "aten::_index_put_impl_: 1" : ""),
      operation(
          "index_put_ by a mask", [](auto& x, auto&) { x.clone().index_put_({x > 0}, torch::zeros({1}, x.options())); },
          "aten::_index_put_impl_: 1"),
      operation(
          "unique", [](auto& x, auto&) { (void)at::_unique2(x); }, "aten::_unique2: 1"),
      operation(
          "unique_consecutive", [](auto& x, auto&) { (void)torch::unique_consecutive(x); },
          "aten::unique_consecutive: 1"),
      operation(
          "bincount", [](auto&, auto& labels) { (void)labels.bincount(); }, "aten::bincount: 1"),
      operation(
          "repeat_interleave", [](auto&, auto& labels) { (void)labels.repeat_interleave(labels); },
          "aten::repeat_interleave: 1"),
      operation(
          "one_hot", [](auto&, auto& labels) { (void)F::one_hot(labels); }, "item: 1"),
      operation(
          "one_hot of so many", [](auto&, auto& labels) { (void)F::one_hot(labels, 5); }, ""),
  };
}

void expect_waits(const std::vector<Call>& calls) {
  const auto x = torch::randn({6, 4}).to(device(0)), labels = torch::tensor({0, 1, 2, 3, 1, 0}).to(device(0));
  for (const auto& one : calls) EXPECT_EQ(waits_of(one.prepare(x, labels)), one.waits) << one.what;
}

class LibTorchsOwnWaits : public Simulated {};

TEST_F(LibTorchsOwnWaits, InLayersAreThese) {
  expect_waits(layers_of_sequences());
  expect_waits(other_layers());
}
TEST_F(LibTorchsOwnWaits, InOperationsAreThese) { expect_waits(operations()); }

}  // namespace
}  // namespace muster::sim
