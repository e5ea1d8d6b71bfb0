// A rank whose loss misses the model in a window of accumulated gradients takes part in the others' step.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/compare.h"
#include "runtime/missing_loss_model.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

namespace muster::missing_loss {
namespace {

TEST(MissingLoss, CountsAsZerosInWindowsAndAmongJoinedRanks) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation = {.num_steps = 2, .weighting = GradientWeighting::fixed},
                             .strategy = "ddp_find_unused_parameters_true"});
    Small net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const int rank = accelerator.process_index();
    auto train = [&, model = model, optimizer = optimizer](int batches, int missing) mutable {
      for (int i = 0; i < batches; ++i) {
        auto window = accelerator.accumulate(model);
        if (rank != 1 || i != missing) accelerator.backward(loss_of(model(inputs(i, rank))));
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    const auto expect_equal = [&] {
      const auto all = accelerator.gather(net->a->weight.detach().view({1, -1}));
      EXPECT_TRUE(torch::equal(all[0], all[1]));
    };
    for (const int missing : {0, 1, 3}) train(4, missing), expect_equal();
    accelerator.join_uneven_inputs([&] { train(rank == 0 ? 8 : 4, 3); });
    expect_equal();
    train(4, 1);
    expect_equal();
  });
}

/// How micro-batches of a window count: all alike, each by its rows, or those without a loss for nothing.
enum class Counting { alike, rows, left_out };

bool misses_micro(int window, int micro, int rank) {
  if (window < 3) return rank == 1 && micro == window;
  return window == 3 ? rank == 0 : micro % 2 == rank;
}

Tensor rows_of(int window, int micro, int rank, Counting counting) {
  const int64_t rows = counting == Counting::alike ? 3 : 1 + (window + 2 * micro + rank) % 3;
  return inputs(3 * window + micro, rank).narrow(0, 0, rows);
}

/// One process that sees all ranks' micro-batches: a mean over those that count, to which a missing loss adds zeros.
std::vector<Tensor> windows_alone(int world, Counting counting, bool clips) {
  Small net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int window = 0; window < 5; ++window) {
    double all = 0;
    std::vector<std::pair<Tensor, double>> losses;
    for (int micro = 0; micro < 3; ++micro)
      for (int rank = 0; rank < world; ++rank) {
        const auto rows = rows_of(window, micro, rank, counting);
        const bool missed = misses_micro(window, micro, rank);
        const double count = counting == Counting::alike                ? 1
                             : counting == Counting::left_out && missed ? 0
                                                                        : static_cast<double>(rows.size(0));
        all += count;
        if (!missed) losses.emplace_back(loss_of(net(rows)), count);
      }
    sgd.zero_grad();
    for (auto& [loss, count] : losses) (loss * (count / all)).backward();
    if (clips) torch::nn::utils::clip_grad_norm_(net->parameters(), 0.2);
    sgd.step();
  }
  return net->parameters();
}

void expect_windows_with_zeros(const std::string& strategy, Counting counting, bool clips) {
  SCOPED_TRACE(strategy + ", counting " + std::to_string(static_cast<int>(counting)) + (clips ? ", clipped" : ""));
  Accelerator accelerator({.gradient_accumulation_steps = 3, .strategy = Strategy::parse(strategy)});
  Small net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)));
  const int rank = accelerator.process_index();
  for (int window = 0; window < 5; ++window)
    for (int micro = 0; micro < 3; ++micro) {
      const auto rows = rows_of(window, micro, rank, counting);
      const bool missed = misses_micro(window, micro, rank);
      auto scope = accelerator.accumulate(model);
      if (counting != Counting::alike)
        scope.count(counting == Counting::left_out && missed ? 0 : static_cast<double>(rows.size(0)));
      if (!missed) accelerator.backward(loss_of(model(rows)));
      if (clips) accelerator.clip_grad_norm_(model, 0.2);
      optimizer.step();
      optimizer.zero_grad();
    }
  const auto expected = windows_alone(accelerator.num_processes(), counting, clips);
  size_t i = 0;
  for (const auto& [name, value] : model.prepared()->managed->full_state(false))
    EXPECT_EQ(testing::difference(value, expected[i++].detach(), 1e-5, 1e-5), "") << name;
}

TEST(MissingLoss, CountsAsZerosWhicheverMicroBatchOfAWindowHasNone) {
  testing::as_ranks(2, [] {
    for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
      for (const auto counting : {Counting::alike, Counting::rows, Counting::left_out})
        for (const bool clips : {false, true}) expect_windows_with_zeros(strategy, counting, clips);
  });
}

/// The first of three micro-batches, or the last of a short window, has no loss on the last rank.
void expect_zeros_in_a_short_window(int missed) {
  SCOPED_TRACE(missed);
  Accelerator accelerator(
      {.even_batches = false, .gradient_accumulation_steps = 3, .strategy = "ddp_find_unused_parameters_true"});
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  std::vector<Tensor> data;
  for (int i = 0; i < 4 * 5 * world; ++i) data.push_back(torch::cos(torch::arange(4, torch::kFloat) * 0.7 + i));
  Small net, alone;
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), DataLoader(data, {.batch_size = 4}));
  int step = 0;
  for (auto& batch : batches) {
    auto window = accelerator.accumulate(model);
    if (step++ != missed || rank != world - 1) accelerator.backward(loss_of(model(batch)));
    optimizer.step();
    optimizer.zero_grad();
  }
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  for (const auto& [begin, end] : {std::pair(0, 3), std::pair(3, 5)}) {
    sgd.zero_grad();
    for (int s = begin; s < end; ++s)
      for (int r = 0; r < world; ++r)
        if (s != missed || r != world - 1)
          (loss_of(alone(torch::stack(
               std::vector<Tensor>(data.begin() + 4 * (s * world + r), data.begin() + 4 * (s * world + r + 1))))) /
           ((end - begin) * world))
              .backward();
    sgd.step();
  }
  for (size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_EQ(testing::difference(net->parameters()[i].detach(), alone->parameters()[i].detach(), 1e-5, 1e-5), "") << i;
}

TEST(MissingLoss, CountsAsZerosInShortWindowsAlone) {
  for (int missed = 0; missed < 5; ++missed) expect_zeros_in_a_short_window(missed);
}

TEST(MissingLoss, CountsAsZerosInShortWindows) {
  testing::as_ranks(2, [] {
    for (int missed = 0; missed < 5; ++missed) expect_zeros_in_a_short_window(missed);
  });
}

}  // namespace
}  // namespace muster::missing_loss
