// LibTorch calls these fused cells if an LSTM or a GRU is on an accelerator. They get products without biases. The CPU
// rounds products and biases together, so its numbers differ by rounding.
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>

#include "sim/kernels.h"

namespace muster::sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

Tensor or_zeros(const MaybeTensor& gradient, const Tensor& like) {
  return gradient && gradient->defined() ? *gradient : at::zeros_like(like);
}

Tensor bias_gradient(const Tensor& gates, bool has_bias) { return has_bias ? gates.sum(0) : Tensor(); }

/// The workspace holds the gates after their activation functions: input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto gates = (with_bias(hidden_gates, hidden_bias) + with_bias(input_gates, input_bias)).chunk(4, 1);
  const auto input = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const auto cy = forget * cx + input * cell;
  return {out * cy.tanh(), cy, at::cat({input, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const auto &input = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto squashed = cy.tanh();
  const auto of_hy = or_zeros(grad_hy, cy);
  const auto of_cy = or_zeros(grad_cy, cy) + at::tanh_backward(of_hy * out, squashed);
  const auto of_gates = at::cat({at::sigmoid_backward(of_cy * cell, input), at::sigmoid_backward(of_cy * cx, forget),
                                 at::tanh_backward(of_cy * input, cell), at::sigmoid_backward(of_hy * squashed, out)},
                                1);
  return {of_gates, of_cy * forget, bias_gradient(of_gates, has_bias)};
}

/// The workspace holds the reset and update gates, the new value, the old one, and the hidden gates of the new value.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto of_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (of_hidden[0] + of_input[0]).sigmoid(), update = (of_hidden[1] + of_input[1]).sigmoid();
  const auto made = (of_input[2] + of_hidden[2] * reset).tanh();
  return {(hx - made) * update + made, at::cat({reset, update, made, hx, of_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &made = parts[2], &hx = parts[3], &hidden = parts[4];
  const auto of_hx = grad_hy * update;
  const auto of_made = at::tanh_backward(grad_hy - of_hx, made);
  const auto of_reset = at::sigmoid_backward(of_made * hidden, reset);
  const auto of_update = at::sigmoid_backward(grad_hy * (hx - made), update);
  const auto input_gates = at::cat({of_reset, of_update, of_made}, 1);
  const auto hidden_gates = at::cat({of_reset, of_update, of_made * reset}, 1);
  return {input_gates, hidden_gates, of_hx, bias_gradient(input_gates, has_bias),
          bias_gradient(hidden_gates, has_bias)};
}

}  // namespace

void register_recurrent(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace muster::sim
