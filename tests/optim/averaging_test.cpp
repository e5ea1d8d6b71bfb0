#include "muster/optim/averaging.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "optim/averaging_cases.h"

namespace muster::optim {
namespace {

using testing::Normed;
using testing::set_values;

std::vector<at::Tensor> values_of(torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const auto& tensor : module.parameters()) values.push_back(tensor.detach().clone());
  for (const auto& tensor : module.buffers()) values.push_back(tensor.clone());
  return values;
}

bool equal_values(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (size_t i = 0; equal && i < a.size(); ++i) equal = torch::equal(a[i], b[i]);
  return equal;
}

TEST(Averaging, IsTheMeanOfAllUpdates) {
  Normed net;
  AveragedModel average(*net, {.kind = AveragingKind::swa});
  at::Tensor sum = torch::zeros_like(net->linear->weight);
  for (int n = 0; n < 10; ++n) {
    set_values(*net, n);
    sum += net->linear->weight.detach();
    average.update();
  }
  EXPECT_EQ(average.n_averaged(), 10);
  EXPECT_TRUE(torch::allclose(average.state_dict().map()[0].second.tensor(), sum / 10, 1e-12, 1e-14));
}

TEST(Averaging, ScopeLendsTheWeightsAndGivesThemBack) {
  Normed net;
  AveragedModel average(*net, {.decay = 0.5});
  EXPECT_EQ(muster::testing::thrown_id([&] { average.use([] {}); }), "MU141");
  for (int n = 0; n < 3; ++n) {
    set_values(*net, n);
    average.update();
  }
  const auto trained = values_of(*net);
  const auto averaged = average.state_dict().map()[0].second.tensor().clone();
  EXPECT_FALSE(torch::equal(averaged, trained[0]));
  const auto* memory = net->linear->weight.const_data_ptr();
  try {
    average.use([&] {
      EXPECT_TRUE(torch::equal(net->linear->weight, averaged));
      EXPECT_EQ(net->linear->weight.const_data_ptr(), memory);
      EXPECT_EQ(muster::testing::thrown_id([&] { average.update(); }), "MU141");
      EXPECT_EQ(muster::testing::thrown_id([&] { average.use([] {}); }), "MU141");
      throw 1;
    });
  } catch (int) {}
  EXPECT_TRUE(equal_values(values_of(*net), trained));
  EXPECT_TRUE(torch::equal(average.state_dict().map()[0].second.tensor(), averaged));
  EXPECT_TRUE(torch::equal(average.use([&] { return net->linear->weight.detach().clone(); }), averaged));
  average.copy_to_module();
  EXPECT_TRUE(torch::equal(net->linear->weight, averaged));
}

TEST(Averaging, GoesOnAfterALoad) {
  Normed first, second;
  AveragedModel whole(*first, {.kind = AveragingKind::swa}), resumed(*second, {.kind = AveragingKind::swa});
  for (int n = 0; n < 9; ++n) {
    if (n == 5) resumed.load_state_dict(whole.state_dict());
    set_values(*first, n);
    set_values(*second, n);
    whole.update();
    if (n >= 5) resumed.update();
  }
  for (size_t i = 0; i < whole.state_dict().map().size(); ++i)
    EXPECT_TRUE(
        torch::equal(whole.state_dict().map()[i].second.tensor(), resumed.state_dict().map()[i].second.tensor()));
  auto state = whole.state_dict();
  state.map()[0].second = torch::zeros({1});
  EXPECT_EQ(muster::testing::thrown_id([&] { resumed.load_state_dict(state); }), "MU142");
  state.map().erase(state.map().begin());
  EXPECT_EQ(muster::testing::thrown_id([&] { resumed.load_state_dict(state); }), "MU142");
  EXPECT_EQ(muster::testing::thrown_id([&] { AveragedModel(*first, {.decay = 1.5}); }), "MU140");
}

TEST(Averaging, GivesBatchNormTheStatisticsOfTheData) {
  torch::manual_seed(4);
  Normed net;
  const auto data = torch::randn({64, 5}, torch::kDouble);
  net->eval();
  update_bn(*net, [&] {
    for (const auto& batch : data.chunk(4)) net->forward(batch);
  });
  at::Tensor means = torch::zeros({4}, torch::kDouble), variances = torch::zeros({4}, torch::kDouble);
  for (const auto& batch : data.chunk(4)) {
    means += net->linear(batch).mean(0) / 4;
    variances += net->linear(batch).var(0) / 4;
  }
  EXPECT_TRUE(torch::allclose(net->norm->running_mean, means, 1e-10, 1e-12));
  EXPECT_TRUE(torch::allclose(net->norm->running_var, variances, 1e-10, 1e-12));
  EXPECT_FALSE(net->is_training());
  EXPECT_DOUBLE_EQ(net->norm->options.momentum().value(), 0.1);
}

}  // namespace
}  // namespace muster::optim
