#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "muster/base/error.h"
#include "muster/testing/thrown.h"
#include "simulated.h"

namespace muster::sim {
namespace {

class SimOperators : public Simulated {};

using Function = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y)>;

/// Functions of a [4, 5] and a [5, 3], each with its name.
const std::vector<std::pair<const char*, Function>>& functions() {
  using torch::indexing::Slice;
  static const std::vector<std::pair<const char*, Function>> all = {
      {"mm", [](auto& x, auto& y) { return torch::mm(x, y); }},
      {"strides", [](auto& x, auto&) { return (x * 2 + 1).t().contiguous(); }},
      {"slices", [](auto& x, auto&) { return x.index({Slice(1, 3)}).sum(0); }},
      {"nonzero", [](auto& x, auto&) { return x.nonzero(); }},
      {"masked_select", [](auto& x, auto&) { return x.masked_select(x > 0); }},
      {"a mask as index", [](auto& x, auto&) { return x.index({x > 0}); }},
      {"out",
       [](auto& x, auto&) {
         auto z = torch::empty({0}, x.options());
         return torch::add_out(z, x, x);
       }},
      {"resize_",
       [](auto& x, auto&) {
         return x.clone().resize_({6, 7}).zero_();
       }},
      {"set_",
       [](auto& x, auto&) {
         return torch::empty({0}, x.options()).set_(x.storage(), 5, {2, 5}, {5, 1});
       }},
      {"as_strided", [](auto& x, auto&) { return x.as_strided({3}, {2}, 1); }},
      {"a number of the host", [](auto& x, auto&) { return x + torch::tensor(2.0); }},
      {"a dtype", [](auto& x, auto&) { return x.to(torch::kDouble); }},
      {"_foreach_add",
       [](auto& x, auto&) {
         return at::_foreach_add({x, x * 2}, 1.5)[1];
       }},
      {"sort", [](auto& x, auto&) { return std::get<0>(x.sort(1)); }},
      {"argmax", [](auto& x, auto&) { return x.argmax(1); }},
      {"relu", [](auto& x, auto&) { return x.relu(); }},
      {"index_put_",
       [](auto& x, auto&) {
         return x.clone().index_put_({torch::tensor({0, 2}, x.device())}, torch::ones({5}, x.options()));
       }},
      {"a conjugate",
       [](auto& x, auto&) {
         const auto c = torch::complex(x, x + 1);
         return torch::view_as_real(c.conj().clone() * c.conj());
       }},
      {"a negative view", [](auto& x, auto&) { return torch::imag(torch::complex(x, x + 1).conj()).clone(); }},
      {"attention",
       [](auto& x, auto&) {
         const auto q = x.view({1, 1, 4, 5});
         return at::scaled_dot_product_attention(q, q, q);
       }},
  };
  return all;
}

TEST_F(SimOperators, HaveTheCpusBits) {
  at::globalContext().setSDPUseFlash(false);  // the CPU's own algorithm has no counterpart
  for (uint64_t seed = 0; seed < 5; ++seed) {
    set_seed(seed);
    const auto a = torch::randn({4, 5}), b = torch::randn({5, 3});
    const auto x = a.to(device(0)), y = b.to(device(0));
    for (const auto& [name, function] : functions())
      EXPECT_EQ(difference_in_bits(function(x, y), function(a, b)), "") << name << ", seed " << seed;
  }
  at::globalContext().setSDPUseFlash(true);
}

/// Output and gradients, of weights and input.
template <class Layer>
std::vector<at::Tensor> run_layer(Layer layer, const at::Tensor& input) {
  const auto x = input.detach().requires_grad_();
  const auto y = std::get<0>(layer->forward(x));
  y.square().sum().backward();
  std::vector<at::Tensor> all{y.detach(), x.grad()};
  for (const auto& p : layer->parameters()) all.push_back(p.grad());
  return all;
}

/// They differ from the CPU's by rounding, and not by the seed.
template <class Layer, class LayerOptions>
void expect_the_cpus_layer(const LayerOptions& options) {
  torch::manual_seed(5);
  Layer here(options);
  const auto input = torch::randn({5, 3, 4});
  const auto expected = run_layer(here, input);
  std::vector<at::Tensor> first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    set_seed(seed);
    Layer there(options);
    for (size_t i = 0; i < expected.size() - 2; ++i)
      there->parameters()[i].data().copy_(here->parameters()[i].detach());
    there->to(device(0));
    const auto actual = run_layer(there, input.to(device(0)));
    if (seed == 0) first = actual;
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(testing::difference(actual[i].cpu(), expected[i], 1e-4, 1e-6), "") << "tensor " << i;
      EXPECT_EQ(difference_in_bits(actual[i], first[i]), "") << "tensor " << i << ", seed " << seed;
    }
  }
}

TEST_F(SimOperators, OfRecurrentLayers) {
  expect_the_cpus_layer<torch::nn::LSTM>(torch::nn::LSTMOptions(4, 6).num_layers(2));
  expect_the_cpus_layer<torch::nn::GRU>(torch::nn::GRUOptions(4, 6).num_layers(2));
}

TEST_F(SimOperators, RandomNumbersAreTheCpus) {
  torch::manual_seed(3);
  const auto here = torch::randn({10}), uniform = torch::rand({7});
  torch::manual_seed(3);
  EXPECT_EQ(difference_in_bits(torch::randn({10}, torch::device(device(0))), here), "");
  EXPECT_EQ(difference_in_bits(torch::rand({7}, torch::device(device(0))), uniform), "");
  auto generator = at::globalContext().defaultGenerator(device(0));
  const auto state = generator.get_state();
  const auto first = torch::randn({5}, torch::device(device(0)));
  generator.set_state(state);
  EXPECT_EQ(difference_in_bits(torch::randn({5}, torch::device(device(0))), first), "");
  EXPECT_NE(difference_in_bits(torch::randn({5}, torch::device(device(0))), first), "");
}

TEST_F(SimOperators, ADeviceIsNotMixedWithAnother) {
  const auto x = torch::ones({3}, device(0)), other = x.to(device(2));
  EXPECT_EQ(other.device().str(), "sim:2");
  EXPECT_EQ(difference_in_bits(other, torch::ones({3})), "");
  EXPECT_THROW((void)(x + other), c10::Error);
  EXPECT_THROW((void)(x + torch::ones({3})), c10::Error);
}

TEST_F(SimOperators, AFailureOnTheDeviceIsThrownWhereTheHostWaits) {
  const auto words = torch::randn({4, 5}, torch::device(device(0)));
  const auto message = testing::thrown([&] { (void)torch::embedding(words, torch::tensor({9}, device(0))).cpu(); });
  EXPECT_EQ(message, "MU552: aten::index_select failed on the simulated accelerator: index out of range in self");
}

TEST_F(SimOperators, ADeviceThatIsNotThereIsAnError) {
  EXPECT_EQ(testing::thrown_id([] { (void)torch::ones({1}, device(4)); }), "MU553");
}

TEST_F(SimOperators, WaitsAreCountedByCause) {
  const auto x = torch::ones({3}, device(0));
  reset_stats();
  (void)(x * 2 + x);
  EXPECT_EQ(stats().all_host_waits(), 0);
  (void)x.sum().item<float>();
  (void)x.nonzero();
  (void)x.cpu();
  const std::map<std::string, int64_t> expected = {{"aten::nonzero", 1}, {"copy to the host", 1}, {"item", 1}};
  EXPECT_EQ(stats().host_waits, expected);
}

TEST_F(SimOperators, InstallingTwiceIsOnce) {
  install();
  EXPECT_EQ(testing::thrown_id([] { install({.devices = 3}); }), "MU550");
}

}  // namespace
}  // namespace muster::sim
