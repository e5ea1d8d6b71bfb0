#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/option_jobs.h"
#include "muster/testing/thrown.h"
#include "options/program_options.h"
#include "options/runtime_fields.h"
#include "options/trainer_fields.h"

namespace muster::launcher::testing::trainer_options {
namespace {

namespace fs = std::filesystem;
using muster::testing::thrown, muster::testing::thrown_id;

/// Another value than the default for every option that text can set.
const Values kOther{{"trainer.barebones", "true"},
                    {"trainer.check_val_every_n_epoch", "none"},
                    {"trainer.default_root_dir", "out"},
                    {"trainer.detect_anomaly", "true"},
                    {"trainer.enable_checkpointing", "false"},
                    {"trainer.enable_model_summary", "false"},
                    {"trainer.enable_progress_bar", "false"},
                    {"trainer.fast_dev_run", "3"},
                    {"trainer.gradient_clip_algorithm", "value"},
                    {"trainer.gradient_clip_val", "0.5"},
                    {"trainer.inference_mode", "false"},
                    {"trainer.limit_predict_batches", "7"},
                    {"trainer.limit_test_batches", "0.25"},
                    {"trainer.limit_train_batches", "0.0"},
                    {"trainer.limit_val_batches", "1"},
                    {"trainer.log_every_n_steps", "7"},
                    {"trainer.max_epochs", "5"},
                    {"trainer.max_steps", "50"},
                    {"trainer.max_time", "00:12:00:00"},
                    {"trainer.min_epochs", "2"},
                    {"trainer.min_steps", "20"},
                    {"trainer.num_sanity_val_steps", "0"},
                    {"trainer.overfit_batches", "0.5"},
                    {"trainer.reload_dataloaders_every_n_epochs", "1"},
                    {"trainer.sync_batchnorm", "true"},
                    {"trainer.val_check_interval", "4"}};
/// They contradict others above.
const std::set<std::string> kAlone{"trainer.barebones", "trainer.fast_dev_run"};

std::vector<Values> jobs() {
  auto together = kOther;
  std::vector<Values> all;
  for (const auto& name : kAlone) {
    all.push_back({{name, kOther.at(name)}});
    together.erase(name);
  }
  all.push_back(together);
  return all;
}

TEST(TrainerOptionWays, TheTestSetsEveryOptionToAnotherValue) {
  for (const auto& option : runtime::program_options())
    if (option.name.starts_with("trainer.") && !option.code_only) {
      ASSERT_TRUE(kOther.contains(option.name)) << option.name << " is not tested here";
      EXPECT_NE(kOther.at(option.name), option.default_text) << option.name;
    }
}

TEST(TrainerOptionWays, ByFlag) { expect_by_flag(jobs()); }

TEST(TrainerOptionWays, ByVariable) { expect_by_variable(jobs()); }

TEST(TrainerOptionWays, ByTheLine) { expect_by_line(jobs(), "MUSTER_TRAINER_MAX_EPOCHS=9"); }

TEST(TrainerOptionWays, ByTheFile) {
  const auto file = fs::temp_directory_path() / ("muster_trainer_ways_" + std::to_string(getpid()) + ".yaml");
  for (const auto& values : jobs()) {
    std::ofstream yaml(file);
    yaml << "run:\n  trainer:\n";
    for (const auto& [name, text] : values) yaml << "    " << name.substr(8) << ": " << text << "\n";
    yaml.close();
    expect_resolved(values, {"--config", file.string()});
  }
  fs::remove(file);
}

TEST(TrainerOptionWays, LightningsVariablesCountLeast) {
  const Environment lightning{{"PL_TRAINER_MAX_EPOCHS", "7"}};
  EXPECT_EQ(trainer::with_given_options({}, lightning).max_epochs, 7);
  EXPECT_EQ(runtime::unknown_variables(lightning), "");
  auto ours = lightning;
  ours.set("MUSTER_TRAINER_MAX_EPOCHS", "8");
  EXPECT_EQ(trainer::with_given_options({}, ours).max_epochs, 8);
}

TEST(TrainerOptionWays, ARequestFillsADefaultAndMustNotContradict) {
  const Environment variables{{"MUSTER_TRAINER_MAX_EPOCHS", "3"}, {"MUSTER_OPTIONS", "trainer.val_check_interval=90s"}};
  const auto options = trainer::with_given_options({.max_steps = 4}, variables);
  EXPECT_EQ(options.max_epochs, 3);
  EXPECT_EQ(options.max_steps, 4);
  EXPECT_EQ(options.val_check_interval.time().value(), std::chrono::seconds(90));
  EXPECT_EQ(thrown_id([&] { trainer::with_given_options({.max_epochs = 4}, variables); }), "MU171");
  EXPECT_NE(thrown([] {
              trainer::with_given_options({}, {{"MUSTER_OPTIONS", "trainer.max_epoch=3"}});
            }).find("nearest is 'trainer.max_epochs'"),
            std::string::npos);
}

TEST(TrainerOptionWays, WhatCannotWorkIsRefusedBeforeAProcessStarts) {  // MU002, MU440
  const auto refused = [](const std::vector<std::string>& flags) {
    auto all = flags;
    all.insert(all.end(), {rank_program(), "options"});
    Process process(muster_run(all));
    EXPECT_NE(process.wait(), 0);
    EXPECT_EQ(process.out().find("accelerator="), std::string::npos) << "a rank was started";
    return process.error();
  };
  EXPECT_NE(refused({"--trainer-max-time", "tomorrow"}).find("MU002"), std::string::npos);
  const auto several = refused({"--trainer-max-epochs=-3", "--trainer-limit-val-batches", "1.5", "--trainer-min-steps",
                                "5", "--trainer-max-steps", "4"});
  for (const auto* part : {"MU440", "max_epochs is -3", "limit_val_batches is 1.5", "min_steps is greater"})
    EXPECT_NE(several.find(part), std::string::npos) << part << " in " << several;
  // It may go with what the program says.
  expect_resolved({{"trainer.check_val_every_n_epoch", "none"}}, {"--trainer-check-val-every-n-epoch", "none"});
}

TEST(TrainerOptionWays, TheRuntimeGetsHowKernelsAndCoresAreChosen) {
  const auto options = trainer::runtime_options(
      {.affinity = false, .benchmark = true, .deterministic = "warn", .matmul_precision = "high"});
  EXPECT_FALSE(options.affinity);
  EXPECT_EQ(options.benchmark, true);
  EXPECT_TRUE(options.deterministic.warns());
  EXPECT_EQ(options.matmul_precision, MatmulPrecision("high"));
}

TEST(TrainerOptionWays, TheRuntimeGetsEveryNumberAndSwitchThatBothHave) {
  TrainerOptions given;
  const auto each_shared = [](auto f) {
    runtime::visit_options([&](const char* name, auto get, const options::Description&) {
      if constexpr (requires(TrainerOptions& of_trainer) { get(of_trainer); }) {
        using T = std::remove_cvref_t<decltype(get(std::declval<TrainerOptions&>()))>;
        if constexpr (std::is_arithmetic_v<T>) f(name, get);
      }
    });
  };
  each_shared([&](const char*, auto get) {
    auto& value = get(given);
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, bool>) value = !value;
    else value += 1;
  });
  auto got = trainer::runtime_options(given);
  int compared = 0;
  each_shared([&](const char* name, auto get) {
    EXPECT_EQ(get(got), get(given)) << name << ": copied_options() did not copy it, or runtime_options() replaces it";
    ++compared;
  });
  EXPECT_GE(compared, 8);
}

TEST(TrainerOptionWays, TheTableHasEveryFieldThatTheRuntimeHasNot) {
  // A field that is added to the struct breaks this line: give it a line in trainer_fields.cpp, or, if it is an option
  // of the runtime, too, count it in kNotInTheTable.
  [[maybe_unused]] const auto& [accelerator, accumulate_grad_batches, affinity, backend, barebones, benchmark,
                                callbacks, check_val_every_n_epoch, default_root_dir, detect_anomaly, deterministic,
                                device_backend, devices, enable_checkpointing, enable_model_summary,
                                enable_progress_bar, fast_dev_run, grad_scaler, gradient_clip_algorithm,
                                gradient_clip_val, gradient_weighting, inference_mode, keep_memory,
                                limit_predict_batches, limit_test_batches, limit_train_batches, limit_val_batches,
                                log_every_n_steps, logger, matmul_precision, max_epochs, max_steps, max_time,
                                min_epochs, min_steps, num_nodes, num_sanity_val_steps, overfit_batches, precision,
                                recompute, reload_dataloaders_every_n_epochs, requeue, strategy, sync_batchnorm,
                                timeout, two_level_sums, val_check_interval] = TrainerOptions();
  constexpr size_t kFields = 47, kNotInTheTable = 18;
  EXPECT_EQ(trainer::option_table().options.size(), kFields - kNotInTheTable);
}

}  // namespace
}  // namespace muster::launcher::testing::trainer_options
