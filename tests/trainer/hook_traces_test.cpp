#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/interrupted_run.h"
#include "trainer/traced_module.h"

namespace muster {
namespace {

using testing::HookTrace, testing::TracedCallback, testing::TracedModule;
using Calls = std::vector<std::string>;

/// What Lightning recorded, without what is a plain call here; what was nested in it moves one level out.
Calls recorded(const std::string& scenario) {
  static const std::set<std::string> plain = {"M.state_dict", "M.load_state_dict", "M.manual_backward",
                                              "M.clip_gradients"};
  const auto all = nlohmann::json::parse(std::ifstream(MUSTER_SOURCE_DIR "/tests/trainer/hook_traces.json"));
  Calls kept;
  std::vector<int> inside;
  for (const std::string line : all.at(scenario)) {
    const int depth = std::stoi(line);
    const auto name = line.substr(line.find(' ') + 1);
    while (!inside.empty() && depth <= inside.back()) inside.pop_back();
    if (plain.contains(name)) inside.push_back(depth);
    else kept.push_back(std::to_string(depth - static_cast<int>(inside.size())) + " " + name);
  }
  return kept;
}

Calls traced(const TrainerOptions& given, const std::function<void(Trainer&, HookTrace&)>& run) {
  HookTrace trace;
  auto options = given;
  options.callbacks = {std::make_shared<TracedCallback>(trace)};
  Trainer trainer(options);
  run(trainer, trace);
  return trace.calls;
}

/// Runs all recorded scenarios.
void expect_recorded(const std::filesystem::path& folder, bool prepares_data) {
  const auto expect = [&](const std::string& scenario, TrainerOptions options,
                          const std::function<void(Trainer&, HookTrace&)>& run) {
    options.default_root_dir = folder / scenario;
    auto wanted = recorded(scenario);
    if (!prepares_data) std::erase(wanted, "0 M.prepare_data");
    EXPECT_EQ(traced(options, run), wanted) << scenario;
  };
  const auto fit = [](int64_t batches, bool manual = false) {
    return [=](Trainer& trainer, HookTrace& trace) {
      TracedModule module(trace, batches, manual);
      trainer.fit(module);
    };
  };
  expect("fit_2epochs_2train_1val", {.max_epochs = 2}, fit(2));
  expect("fit_manual_1train_noval", {.limit_val_batches = 0, .max_epochs = 1}, fit(1, true));
  expect("fit_1epoch_1train_noval", {.limit_val_batches = 0, .max_epochs = 1}, fit(1));
  expect("fit_resume_to_epoch2_1train_noval", {.limit_val_batches = 0, .max_epochs = 2},
         [&](Trainer& trainer, HookTrace& trace) {
           TracedModule module(trace, 1);
           trainer.fit(module, {.ckpt_path = folder / "fit_1epoch_1train_noval/checkpoints/epoch=0-step=1.ckpt"});
         });
  expect("validate_1batch", {}, [](Trainer& trainer, HookTrace& trace) {
    TracedModule module(trace);
    trainer.validate(module);
  });
  expect("predict_1batch", {}, [](Trainer& trainer, HookTrace& trace) {
    TracedModule module(trace);
    trainer.predict(module);
  });
}

TEST(HookTraces, OneRankCallsHooksInTheRecordedOrder) {
  const testing::TemporaryFolder folder;
  expect_recorded(folder.path(), true);
}

TEST(HookTraces, TwoRanksCallHooksInTheRecordedOrder) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    expect_recorded(folder.path(), keeps_the_meeting_place.is_main_process());
  });
}

TrainerOptions options_of(const nlohmann::json& given) {
  TrainerOptions options{.enable_model_summary = false, .enable_progress_bar = false};
  const auto number = [&](const char* name) { return given.at(name).get<int64_t>(); };
  if (given.contains("max_epochs")) options.max_epochs = number("max_epochs");
  if (given.contains("num_sanity_val_steps")) options.num_sanity_val_steps = number("num_sanity_val_steps");
  if (given.contains("limit_val_batches")) options.limit_val_batches = number("limit_val_batches");
  if (given.contains("reload_dataloaders_every_n_epochs"))
    options.reload_dataloaders_every_n_epochs = number("reload_dataloaders_every_n_epochs");
  if (given.contains("check_val_every_n_epoch")) {
    const auto& every = given.at("check_val_every_n_epoch");
    options.check_val_every_n_epoch = every.is_null() ? std::nullopt : std::optional(every.get<int64_t>());
  }
  if (!given.contains("val_check_interval")) return options;
  const auto& interval = given.at("val_check_interval");
  if (interval.is_number_integer()) options.val_check_interval = interval.get<int64_t>();
  else options.val_check_interval = interval.get<double>();
  return options;
}

/// Those of the calls that loader_order.py traces, in its words.
Calls as_recorded(const Calls& calls) {
  static const std::set<std::string> traced = {"setup",
                                               "on_fit_start",
                                               "on_load_checkpoint",
                                               "on_sanity_check_start",
                                               "on_sanity_check_end",
                                               "on_train_start",
                                               "on_train_epoch_start",
                                               "on_train_epoch_end",
                                               "on_validation_start",
                                               "on_validation_end",
                                               "on_test_start",
                                               "on_test_end",
                                               "on_predict_start",
                                               "on_predict_end",
                                               "on_train_end",
                                               "on_fit_end",
                                               "teardown"};
  Calls kept;
  for (const auto& call : calls) {
    const auto name = call.substr(call.find('.') + 1);
    const bool of_callback = call.find(" CB.") != call.npos;
    if (of_callback ? traced.contains(name) : name.ends_with("_dataloader")) kept.push_back(name);
  }
  return kept;
}

/// The calls of a recorded case.
Calls loader_order(const std::filesystem::path& folder, const nlohmann::json& one) {
  const auto run = [&](const char* part, const std::string& entry, const std::string& ckpt_path) {
    ModelCheckpointOptions saver{.dirpath = folder / part, .filename = "{step}", .save_top_k = -1};
    if (one.at("saved_at") == "epoch") saver.save_on_train_epoch_end = true;
    else saver.every_n_train_steps = one.at("saved_at").get<int64_t>();
    HookTrace trace;
    auto options = options_of(one.at(part));
    options.default_root_dir = folder;
    options.callbacks = {std::make_shared<TracedCallback>(trace), std::make_shared<ModelCheckpoint>(saver)};
    Trainer trainer(options);
    TracedModule module(trace, 4);
    if (entry == "fit") trainer.fit(module, {.ckpt_path = ckpt_path});
    else if (entry == "validate") trainer.validate(module, {.ckpt_path = ckpt_path});
    else if (entry == "test") trainer.test(module, {.ckpt_path = ckpt_path});
    else trainer.predict(module, {.ckpt_path = ckpt_path});
    return as_recorded(trace.calls);
  };
  const auto first = run("first", "fit", "");
  const auto* saved = one.at("saved_at") == "epoch" ? "first/step=4.ckpt" : "first/step=3.ckpt";
  return one.at("entry").is_null() ? first : run("second", one.at("entry"), folder / saved);
}

TEST(HookTraces, LoadersAreMadeWhenLightningMakesThem) {
  const auto all = nlohmann::json::parse(std::ifstream(MUSTER_SOURCE_DIR "/tests/trainer/loader_order.json"));
  const auto& cases = all.at("cases");
  for (std::size_t i = 0; i < cases.size(); i += static_cast<std::size_t>(testing::stride(3))) {
    const auto& one = cases[i];
    const testing::QuickFolder folder;
    EXPECT_EQ(loader_order(folder.path(), one), one.at("calls").get<Calls>())
        << one.at("saved_at") << one.at("first") << one.at("entry") << one.at("second");
  }
  std::cout << "one in " << testing::stride(3) << " of " << cases.size() << " cases of Lightning "
            << all.at("lightning") << '\n';
}

/// The calls of a training batch, by the flags: whether gradients are cleared, the optimizer steps, and the
/// schedule of epochs steps.
Calls training_batch(bool clears, bool steps, bool schedules) {
  Calls calls = {"0 M.on_before_batch_transfer", "0 M.transfer_batch_to_device", "0 M.on_after_batch_transfer",
                 "0 CB.on_train_batch_start", "0 M.on_train_batch_start"};
  const std::string depth = steps ? "1 " : "0 ", deeper = steps ? "2 " : "1 ";
  if (steps) calls.emplace_back("0 M.optimizer_step");
  for (const auto& one : {depth + "M.training_step", deeper + "M.forward"}) calls.push_back(one);
  if (clears)
    for (const auto* one : {"CB.on_before_zero_grad", "M.on_before_zero_grad", "M.optimizer_zero_grad"})
      calls.push_back(depth + one);
  for (const auto* one :
       {"CB.on_before_backward", "M.on_before_backward", "M.backward", "CB.on_after_backward", "M.on_after_backward"})
    calls.push_back(depth + one);
  if (steps)
    for (const auto* one :
         {"CB.on_before_optimizer_step", "M.on_before_optimizer_step", "M.configure_gradient_clipping"})
      calls.push_back(depth + one);
  if (schedules) calls.emplace_back("0 M.lr_scheduler_step");
  calls.emplace_back("0 CB.on_train_batch_end");
  calls.emplace_back("0 M.on_train_batch_end");
  return calls;
}

Calls from(const Calls& calls, const std::string& first, const std::string& last) {
  const auto begin = std::ranges::find(calls, first), end = std::ranges::find(calls, last);
  return begin < end ? Calls(begin + 1, end) : Calls();
}

TEST(HookTraces, AccumulationStepsAtTheEndOfAWindowAndOfTheEpoch) {
  const auto calls = traced({.accumulate_grad_batches = 2,
                             .enable_checkpointing = false,
                             .limit_val_batches = 0,
                             .max_epochs = 1,
                             .num_sanity_val_steps = 0},
                            [](Trainer& trainer, HookTrace& trace) {
                              TracedModule module(trace, 3);
                              trainer.fit(module);
                            });
  Calls wanted;
  for (const auto& batch :
       {training_batch(true, false, false), training_batch(false, true, false), training_batch(true, true, true)})
    wanted.insert(wanted.end(), batch.begin(), batch.end());
  EXPECT_EQ(from(calls, "0 M.on_train_epoch_start", "0 CB.on_train_epoch_end"), wanted);
}

TEST(HookTraces, ASaveAtTheEndOfAValidationComesAfterTheModule) {
  const testing::TemporaryFolder folder;
  const auto calls =
      traced({.default_root_dir = folder.path(), .max_epochs = 1, .num_sanity_val_steps = 0, .val_check_interval = 0.5},
             [](Trainer& trainer, HookTrace& trace) {
               TracedModule module(trace, 4);
               trainer.fit(module);
             });
  const auto end = std::ranges::find(calls, "0 M.on_validation_end");
  ASSERT_GT(calls.end() - end, 4);
  EXPECT_EQ(Calls(end - 1, end + 4), (Calls{"0 CB.on_validation_end", "0 M.on_validation_end", "0 CB.state_dict",
                                            "0 CB.on_save_checkpoint", "0 M.on_save_checkpoint"}));
  EXPECT_EQ(std::ranges::count(calls, "0 M.on_save_checkpoint"), 2);
}

TEST(HookTraces, WithoutASanityCheckLoadersAreMadeOneAfterTheOther) {
  const auto calls = traced({.enable_checkpointing = false, .max_epochs = 1, .num_sanity_val_steps = 0},
                            [](Trainer& trainer, HookTrace& trace) {
                              TracedModule module(trace, 1);
                              trainer.fit(module);
                            });
  EXPECT_EQ(from(calls, "0 M.zero_grad", "0 CB.on_train_start"), (Calls{"0 M.train_dataloader", "0 M.val_dataloader"}));
}

TEST(HookTraces, AnEvaluationLoadsItsCheckpointAfterTheModelIsThere) {
  const testing::TemporaryFolder folder;
  traced({.default_root_dir = folder.path(), .max_epochs = 1}, [](Trainer& trainer, HookTrace& trace) {
    TracedModule module(trace, 1);
    trainer.fit(module);
  });
  const auto calls = traced({}, [&](Trainer& trainer, HookTrace& trace) {
    TracedModule module(trace);
    trainer.test(module, {.ckpt_path = (folder.path() / "checkpoints/epoch=0-step=1.ckpt").string()});
  });
  EXPECT_EQ(from(calls, "0 M.configure_model", "0 M.zero_grad"),
            (Calls{"0 M.on_load_checkpoint", "0 CB.on_load_checkpoint"}));
}

TEST(HookTraces, ALimitOfNoBatchesCallsNoLoader) {
  for (const auto stage : {Stage::validate, Stage::test, Stage::predict}) {
    const auto calls = traced({.limit_predict_batches = 0, .limit_test_batches = 0, .limit_val_batches = 0},
                              [&](Trainer& trainer, HookTrace& trace) {
                                TracedModule module(trace);
                                if (stage == Stage::validate) trainer.validate(module);
                                if (stage == Stage::test) trainer.test(module);
                                if (stage == Stage::predict) trainer.predict(module);
                              });
    const Calls wanted = {"0 M.configure_callbacks", "0 M.prepare_data", "0 CB.setup",    "0 M.setup",
                          "0 M.configure_model",     "0 M.zero_grad",    "0 CB.teardown", "0 M.teardown"};
    EXPECT_EQ(calls, wanted);
  }
}

}  // namespace
}  // namespace muster
