#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/comm/communicator.h"
#include "muster/tree/state.h"
#include "trainer/log_book.h"

namespace muster::trainer {
namespace {

constexpr LogOptions kBoth = {.on_epoch = true, .on_step = true};

void log(LogBook& book, const char* name, double value, int64_t batch_size, const LogOptions& how = kBoth) {
  const auto step = static_cast<int64_t>(value * 10);  // another one for each value
  book.log({.hook = Hook::training_step, .batch_size = batch_size, .step = step}, name, torch::tensor(value), how, {});
}

TEST(LogBookState, AnEpochGoesOnWhereItStood) {
  LatestMetrics wanted_metrics, metrics;
  LogBook wanted(wanted_metrics), before(metrics);
  const LogOptions largest{.on_epoch = true, .on_step = false, .reduce_fx = "max"};
  for (auto* book : {&wanted, &before}) {
    log(*book, "loss", 0.1, 2);
    log(*book, "loss", 0.7, 3);
    log(*book, "most", 4, 1, largest);
  }
  LatestMetrics resumed_metrics;
  LogBook resumed(resumed_metrics);
  resumed.add_state_dict(before.state_dict());
  resumed_metrics.load_state_dict(metrics.state_dict());
  for (auto* book : {&wanted, &resumed}) {
    log(*book, "loss", 0.4, 1);
    log(*book, "most", 2, 1, largest);
    book->close({});
  }
  EXPECT_EQ(resumed_metrics.get(), wanted_metrics.get());
  EXPECT_EQ(resumed_metrics.get().at("most"), 4);
}

TEST(LogBookState, WhoGetsAValueIsKept) {
  LatestMetrics metrics, resumed_metrics;
  LogBook before(metrics), resumed(resumed_metrics);
  const LogOptions hidden{.logger = false, .on_epoch = true, .prog_bar = true};
  log(before, "hidden", 1, 1, hidden);
  resumed.add_state_dict(before.state_dict());
  EXPECT_NO_THROW(log(resumed, "hidden", 3, 1, hidden));  // with other options it throws
  resumed.close({});
  EXPECT_TRUE(resumed.take_epoch_values().empty());
  EXPECT_EQ(resumed_metrics.shown().at("hidden_epoch"), 2);
}

TEST(LogBookState, OneRankTakesUpWhatSeveralHadLogged) {
  LatestMetrics metrics;
  LogBook first(metrics), second(metrics), both(metrics);
  log(first, "loss", 1, 1);
  log(second, "loss", 4, 3);
  log(second, "own", 7, 1);
  both.add_state_dict(first.state_dict());
  both.add_state_dict(second.state_dict());
  both.close({});
  EXPECT_EQ(metrics.get().at("loss_epoch"), 13.0 / 4);
  EXPECT_EQ(metrics.get().at("own_epoch"), 7);
}

}  // namespace
}  // namespace muster::trainer
