#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::CountingModule, testing::quiet;

struct First : Callback {
  Place place() const override { return Place::first; }
};
struct Usual : Callback {};
struct Replaceable : Callback {
  explicit Replaceable(bool of_module) : of_module(of_module) {}
  bool of_module;
};

std::string short_name(const Callback& callback) {
  const auto name = callback.Callback::state_key();
  return name.substr(name.rfind(':') + 1);
}

/// The callbacks in the order in which a fit() calls them.
std::vector<std::string> order_of(TrainerOptions options, CountingModule& module) {
  std::vector<std::string> names;
  LambdaHooks hooks;
  hooks.on_fit_start = [&](Trainer& trainer, TrainerModule&) {
    for (const auto& callback : trainer.callbacks()) names.push_back(short_name(*callback));
  };
  options.callbacks.push_back(std::make_shared<LambdaCallback>(hooks));
  options.max_epochs = 1;
  Trainer(options).fit(module);
  return names;
}

TEST(Setup, AMessageOfPrepareSaysWhenATrainerPrepares) {
  const auto said = [](bool names_optimizer) {
    CountingModule module(1, 0);
    torch::optim::SGD other(module.parameters(), 0.1);
    module.make_optimizers = [&](CountingModule& m) -> Optimizers {
      auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 0.1);
      return {sgd, StepLR(names_optimizer ? *sgd : other, {.step_size = 1})};
    };
    return testing::thrown([&] { Trainer(quiet({.max_epochs = 1})).fit(module); });
  };
  EXPECT_EQ(said(true), "no error");
  const auto message = said(false);
  EXPECT_EQ(message.rfind("MU174: ", 0), 0U) << message;
  EXPECT_NE(message.find("a Trainer prepares the module after its configure_model()"), message.npos) << message;
}

TEST(Setup, CallbacksHaveTheOrderOfLightning) {
  const testing::TemporaryFolder folder;
  CountingModule module(1, 0);
  const auto names =
      order_of({.callbacks = {std::make_shared<ModelCheckpoint>(), std::make_shared<Usual>(), std::make_shared<First>(),
                              std::make_shared<OnExceptionCheckpoint>(), std::make_shared<Timer>()},
                .default_root_dir = folder.path()},
               module);
  EXPECT_EQ(names, (std::vector<std::string>{"First", "Usual", "Timer", "LambdaCallback", "TrainerProgressBar",
                                             "ModelSummary", "OnExceptionCheckpoint", "ModelCheckpoint"}));
}

TEST(Setup, ACallbackOfTheModuleReplacesOneOfItsClass) {
  struct Own : CountingModule {
    using CountingModule::CountingModule;
    std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
      return {std::make_shared<Replaceable>(true), std::make_shared<Usual>()};
    }
  };
  Own module(1, 0);
  std::vector<bool> of_module;
  LambdaHooks hooks;
  hooks.on_fit_start = [&](Trainer& trainer, TrainerModule&) {
    for (const auto& callback : trainer.callbacks())
      if (const auto* one = dynamic_cast<const Replaceable*>(callback.get())) of_module.push_back(one->of_module);
  };
  Trainer(quiet({.callbacks = {std::make_shared<Replaceable>(false), std::make_shared<LambdaCallback>(hooks)},
                 .max_epochs = 1}))
      .fit(module);
  EXPECT_EQ(of_module, std::vector<bool>{true});
}

TEST(Setup, StatesNeedKeysOfTheirOwn) {  // MU452
  const auto fit = [](std::vector<std::shared_ptr<Callback>> callbacks) {
    CountingModule module(1, 0);
    Trainer(quiet({.callbacks = std::move(callbacks), .max_epochs = 1})).fit(module);
  };
  EXPECT_EQ(testing::thrown_id([&] { fit({std::make_shared<Timer>(), std::make_shared<Timer>()}); }), "MU452");
  EXPECT_NO_THROW(fit({std::make_shared<Usual>(), std::make_shared<Usual>()}));
  const auto stopping = [](const char* monitor) {
    return std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = monitor, .strict = false});
  };
  EXPECT_NO_THROW(fit({stopping("a"), stopping("b")}));
}

}  // namespace
}  // namespace muster
