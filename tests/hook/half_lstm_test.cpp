#include "hook/half_lstm.h"

#include <exception>
#include <tuple>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::hook {
namespace {

/// Autocast on a CPU to one dtype.
struct Autocast {
  explicit Autocast(at::ScalarType dtype) : before(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, before);
    at::autocast::clear_cache();
  }
  at::ScalarType before;
};

TEST(HalfLstm, RunsInFloatUnderHalfAutocast) {
  run_half_lstm_in_float();
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 3).num_layers(2));
  const auto half = torch::randn({5, 2, 4}).to(at::kHalf);
  const auto expected = std::get<0>(lstm(half.to(at::kFloat)));
  const Autocast autocast(at::kHalf);
  const auto out = std::get<0>(lstm(half));
  EXPECT_TRUE(out.equal(expected));
  out.sum().backward();
  EXPECT_EQ(lstm->parameters()[0].grad().scalar_type(), at::kFloat);
  EXPECT_EQ(torch::linear(half, torch::ones({2, 4})).scalar_type(), at::kHalf);  // others are left to autocast
}

TEST(HalfLstm, TakesPackedSequences) {
  run_half_lstm_in_float();
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 3));
  const auto packed = torch::nn::utils::rnn::pack_padded_sequence(torch::randn({5, 2, 4}), torch::tensor({5, 3}));
  const auto expected = std::get<0>(lstm->forward_with_packed_input(packed)).data();
  const Autocast autocast(at::kHalf);
  EXPECT_TRUE(std::get<0>(lstm->forward_with_packed_input(packed)).data().equal(expected));
}

/// What autocast to bfloat16 gives on this processor; undefined where oneDNN has no such kernel for it.
at::Tensor in_bfloat16(torch::nn::LSTM& lstm, const at::Tensor& x) {
  const Autocast autocast(at::kBFloat16);
  try {
    return std::get<0>(lstm(x)).detach();
  } catch (const std::exception&) {
    return {};
  }
}

TEST(HalfLstm, RunsInFloatWhereBfloat16HasNoKernel) {
  run_half_lstm_in_float();
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 3));
  const auto x = torch::randn({5, 2, 4});
  const auto in_float = std::get<0>(lstm(x)).detach();
  const auto with = in_bfloat16(lstm, x);
  const InterceptorGuard off(Priority::half_lstm, false);
  const auto without = in_bfloat16(lstm, x);
  ASSERT_TRUE(with.defined());
  EXPECT_TRUE(with.equal(without.defined() ? without : in_float));  // left to autocast where there is a kernel
}

TEST(HalfLstm, TrainsUnderBfloat16Autocast) {
  run_half_lstm_in_float();
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 3).num_layers(2));
  const Autocast autocast(at::kBFloat16);
  std::get<0>(lstm(torch::randn({5, 2, 4}))).sum().backward();
  EXPECT_EQ(lstm->parameters()[0].grad().scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace muster::hook
