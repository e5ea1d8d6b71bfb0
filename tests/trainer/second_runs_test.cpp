// Runs after others: of the same module or Trainer, after an exception, or of two Trainers.
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/runtime/metrics.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::second_runs {
namespace {

using testing::CountingModule, testing::quiet;

struct Broken : std::runtime_error {
  Broken() : std::runtime_error("broken") {}
};

/// Changes a state in place, as a program's own metric may.
struct Total : Metric {
  Total() : Metric({{at::zeros({}, at::kDouble)}}) {}
  void update(const at::Tensor& values) { state(0).add_(values.sum().to(at::kDouble)); }
  at::Tensor compute() const override { return state(0).clone(); }
};

struct Counted : CountingModule {
  using CountingModule::CountingModule;
  Total total = {}, trained_total = {};
  std::optional<int64_t> breaks_at = {}, breaks_validation_at = {};
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));

  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    EXPECT_TRUE(dropout->is_training());
    trained_total.update(batch);
    log("trained", trained_total);
    if (breaks_at == batch_idx) throw Broken();
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor& batch, int64_t batch_idx) {
    total.update(batch);
    log("total", total);
    if (breaks_validation_at == batch_idx) throw Broken();
  }
};

TEST(SecondRuns, AMetricOfAnEvaluationServesInTraining) {
  Counted module(3, 3);
  Trainer trainer(quiet({.max_epochs = 2}));
  EXPECT_DOUBLE_EQ(trainer.validate(module).at(0).at("total"), 3);
  trainer.fit(module);
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("total"), 3);
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("trained"), 3);
}

TEST(SecondRuns, AfterAnExceptionMetricsAndModesBeginAnew) {
  Counted module(3, 3);
  Trainer trainer(quiet({.max_epochs = 1}));
  module.breaks_validation_at = 1;
  EXPECT_THROW(trainer.fit(module), Broken);
  module.breaks_validation_at.reset();
  EXPECT_TRUE(module.dropout->is_training());
  module.breaks_at = 1;
  EXPECT_THROW(trainer.fit(module), Broken);
  module.breaks_at.reset();
  trainer.fit(module);
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("total"), 3);
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("trained"), 3);
}

TEST(SecondRuns, AWindowThatWasLeftOpenIsGivenUp) {
  const auto weight_after = [](bool twice) {
    CountingModule module(8);
    Trainer trainer(quiet({.accumulate_grad_batches = 4, .max_epochs = 1}));
    if (twice) {
      module.on_batch = [](CountingModule& m) {
        if (std::ssize(m.trained) == 3) throw Broken();
      };
      EXPECT_THROW(trainer.fit(module), Broken);
      module.on_batch = {};
    }
    trainer.fit(module);
    EXPECT_EQ(trainer.global_step(), 2);
    return module.w.item<double>();
  };
  EXPECT_NEAR(weight_after(false), 1 - 0.1 * (1.5 + 5.5), 1e-6);
  EXPECT_EQ(weight_after(true), weight_after(false));
}

TEST(SecondRuns, AfterAStopWithinAWindowToo) {
  CountingModule module(6);
  Trainer trainer(quiet({.accumulate_grad_batches = 4, .max_epochs = 5}));
  module.on_batch = [](CountingModule& m) {
    if (std::ssize(m.trained) == 2) m.trainer().stop();
  };
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 0);
  trainer.set_max_epochs(2);
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 2);
  EXPECT_NEAR(module.w.item<double>(), 1 - 0.1 * (1.5 + 4.5), 1e-6);
}

/// As a CountingModule, which can predict.
struct Predicting : CountingModule {
  using CountingModule::CountingModule;
  torch::Tensor forward(const torch::Tensor& x) { return x * w; }
};

TEST(SecondRuns, WhatIsSavedAfterAnEvaluationIsResumed) {
  const testing::TemporaryFolder folder;
  const auto trained = [&](int64_t epochs, const std::string& from) {
    torch::manual_seed(5);
    Predicting module(4, 3);
    module.make_optimizers = [](CountingModule& m) -> Optimizers { return torch::optim::AdamW(m.parameters(), 0.1); };
    Trainer trainer(quiet({.max_epochs = epochs}));
    trainer.fit(module, {.ckpt_path = from});
    trainer.validate(module);
    trainer.predict(module, std::vector{CountingModule::numbers(2), CountingModule::numbers(1)});
    trainer.save_checkpoint(folder.path() / std::to_string(epochs));
    return module.w.item<double>();
  };
  const auto whole = trained(3, "");
  trained(1, "");
  EXPECT_EQ(trained(3, (folder.path() / "1").string()), whole);
}

TEST(SecondRuns, ARunWithinARunIsRefused) {  // MU436
  struct Nested : CountingModule {
    void on_train_epoch_end() override { trainer().validate(*this); }
  };
  Nested module;
  Trainer trainer(quiet({.max_epochs = 1}));
  EXPECT_EQ(testing::thrown_id([&] { trainer.fit(module); }), "MU436");
  CountingModule other;
  trainer.fit(other);
  EXPECT_EQ(other.trained.size(), 5U);
}

TEST(SecondRuns, ARunThatIsRefusedChangesNothing) {  // MU436
  struct Nested : CountingModule {
    void on_train_batch_start(torch::Tensor&, int64_t batch_idx) {
      if (batch_idx != 2) return;
      EXPECT_EQ(testing::thrown_id([&] { trainer().fit(*this); }), "MU436");
      EXPECT_EQ(testing::thrown_id([&] { trainer().validate(*this); }), "MU436");
      log("v", 1.0);
    }
  };
  Nested module;
  Trainer trainer(quiet({.max_epochs = 2}));
  trainer.fit(module);
  EXPECT_EQ(module.trained, (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_EQ(trainer.callback_metrics().size(), 1U);
}

TEST(SecondRuns, AModuleInThePlaceOfAnotherIsTrained) {
  Trainer trainer(quiet({}));
  for (int64_t run = 1; run <= 3; ++run) {
    trainer.set_max_epochs(run);
    CountingModule module(3);
    trainer.fit(module);
    EXPECT_NEAR(module.w.item<double>(), 1 - 0.1 * 3, 1e-6) << run;
  }
}

struct NotedTeardown : Callback {
  NotedTeardown(std::vector<std::string>& notes, std::string name, bool fails)
      : notes(&notes), name(std::move(name)), fails(fails) {}
  std::vector<std::string>* notes;
  std::string name;
  bool fails;
  std::string state_key() const override { return name; }
  void teardown(Trainer&, TrainerModule&, Stage) override {
    notes->push_back(name);
    if (fails) throw Broken();
  }
  void on_exception(Trainer&, TrainerModule&, const std::exception_ptr&) override { notes->push_back("exception"); }
};

TEST(SecondRuns, EverythingIsTornDownOnceEvenIfSomeOfItThrows) {
  struct Noted : CountingModule {
    std::vector<std::string> notes = {};
    void teardown(Stage) override { notes.emplace_back("module"); }
  };
  Noted module;
  const auto a = std::make_shared<NotedTeardown>(module.notes, "a", true);
  const auto b = std::make_shared<NotedTeardown>(module.notes, "b", false);
  Trainer trainer(quiet({.callbacks = {a, b}, .max_epochs = 1}));
  EXPECT_THROW(trainer.fit(module), Broken);
  EXPECT_EQ(module.notes, (std::vector<std::string>{"a", "b", "module", "exception", "exception"}));
  module.notes.clear();
  module.on_batch = [](CountingModule&) { throw std::logic_error("first"); };
  trainer.set_max_epochs(2);
  EXPECT_THROW(trainer.fit(module), std::logic_error);
  EXPECT_EQ(module.notes, (std::vector<std::string>{"exception", "exception", "a", "b", "module"}));
}

/// Weights after two epochs; `trainers`: one for each, or one for both.
template <class F>
std::vector<double> weights_after(const char* strategy, F&& fits) {
  torch::manual_seed(3);
  struct Net : TrainerModule {
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 3));
    torch::Tensor training_step(torch::Tensor& batch, int64_t) {
      return layer(torch::cat({batch, batch * 0.5}, 1)).square().mean();
    }
    Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.01); }
  };
  const auto net = std::make_shared<Net>();
  const auto data = CountingModule::numbers(8);
  const auto options = quiet({.max_epochs = 1, .strategy = Strategy::parse(strategy)});
  return fits(net, data, options);
}

template <class T, class N>
std::vector<double> values(T& trainer, const N& net) {
  std::vector<double> all;
  trainer.runtime().summon_full_params(trainer.model(), [&] {
    for (const auto& p : net->parameters())
      for (int64_t i = 0; i < p.numel(); ++i) all.push_back(p.detach().reshape({-1})[i].template item<double>());
  });
  return all;
}

TEST(SecondRuns, TwoTrainersOnOneRank) {
  const auto one = weights_after("auto", [](auto net, auto data, TrainerOptions options) {
    Trainer first(options);
    first.fit(net, data);
    first.set_max_epochs(2);
    first.fit(net, data);
    return values(first, net);
  });
  const auto two = weights_after("auto", [](auto net, auto data, TrainerOptions options) {
    Trainer first(options), second(options);
    first.fit(net, data);
    second.fit(net, data);
    return values(second, net);
  });
  EXPECT_EQ(one, two);
}

TEST(SecondRuns, TwoTrainersOnSeveralRanks) {
  for (const char* strategy : {"ddp", "fsdp"})
    testing::as_ranks(
        2,
        [&] {
          const Accelerator keeps_the_meeting_place;
          const auto one = weights_after(strategy, [](auto net, auto data, TrainerOptions options) {
            Trainer first(options);
            for (const int64_t epochs : {1, 2, 3}) first.set_max_epochs(epochs), first.fit(net, data);
            return values(first, net);
          });
          const auto two = weights_after(strategy, [](auto net, auto data, TrainerOptions options) {
            Trainer first(options), second(options);
            first.fit(net, data);
            auto held = first.model();
            EXPECT_EQ(testing::thrown_id([&] { second.fit(net, data); }), "MU439");
            held = {};
            second.fit(net, data);
            EXPECT_EQ(testing::thrown_id([&] { first.model(); }), "MU446");
            EXPECT_EQ(testing::thrown_id([&] { first.save_checkpoint("nowhere"); }), "MU446");
            first.set_max_epochs(2);
            first.fit(net, data);
            return values(first, net);
          });
          EXPECT_EQ(one, two);
        },
        strategy);
}

TEST(SecondRuns, AModuleThatHasEndedIsNotAskedFor) {  // MU446
  Trainer trainer(quiet({.max_epochs = 1}));
  {
    CountingModule module(2);
    trainer.fit(module);
  }
  EXPECT_EQ(testing::thrown_id([&] { trainer.model(); }), "MU446");
  EXPECT_EQ(testing::thrown_id([&] { trainer.save_checkpoint("nowhere"); }), "MU446");
  CountingModule module(2);
  trainer.set_max_epochs(2);
  trainer.fit(module);
  { const CountingModule copy = module; }
  EXPECT_NO_THROW(trainer.model());
}

TEST(SecondRuns, AModuleThatAHandleHoldsIsNotTakenOver) {  // MU439
  CountingModule module;
  Trainer first(quiet({.max_epochs = 1})), second(quiet({.max_epochs = 1}));
  first.fit(module);
  auto handle = first.model();
  EXPECT_EQ(testing::thrown_id([&] { second.fit(module); }), "MU439");
  handle = {};
  second.fit(module);
  EXPECT_EQ(module.trained.size(), 10U);
}

TEST(SecondRuns, AModuleThatAnotherTrainerRunsIsRefused) {  // MU436
  struct Nested : CountingModule {
    void on_train_epoch_end() override { Trainer(quiet({})).validate(*this); }
  };
  Nested module;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({.max_epochs = 1})).fit(module); }), "MU436");
}

TEST(SecondRuns, WhatIsSavedWithinAnEvaluationIsResumed) {
  const testing::TemporaryFolder folder;
  struct Saving : CountingModule {
    using CountingModule::CountingModule;
    std::filesystem::path to = {};
    torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));
    void on_validation_end() override {
      if (!to.empty()) trainer().save_checkpoint(to);
    }
  };
  const auto trained = [&](int64_t epochs, const std::string& from) {
    torch::manual_seed(5);
    Saving module(4, 3);
    module.make_optimizers = [](CountingModule& m) -> Optimizers { return torch::optim::AdamW(m.parameters(), 0.1); };
    module.on_batch = [](CountingModule& m) { EXPECT_TRUE(m.children().front()->is_training()); };
    Trainer trainer(quiet({.max_epochs = epochs}));
    trainer.fit(module, {.ckpt_path = from});
    module.to = folder.path() / std::to_string(epochs);
    trainer.validate(module);
    return module.w.item<double>();
  };
  const auto whole = trained(3, "");
  trained(1, "");
  EXPECT_EQ(trained(3, (folder.path() / "1").string()), whole);
}

}  // namespace
}  // namespace muster::second_runs
