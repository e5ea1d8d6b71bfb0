#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/option_jobs.h"
#include "muster/runtime/options.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"
#include "options/runtime_fields.h"

namespace muster::launcher::testing {
namespace {

/// Another value than the default for every option that text can set.
const Values kRuntime{{"accelerator", "cpu"},
                      {"affinity", "false"},
                      {"backend", "gloo"},
                      {"benchmark", "true"},
                      {"deterministic", "true"},
                      {"device_backend", "none"},
                      {"dispatch_batches", "true"},
                      {"even_batches", "false"},
                      {"fp32_modules", "a,b"},
                      {"grad_scaler.backoff_factor", "0.25"},
                      {"grad_scaler.enabled", "false"},
                      {"grad_scaler.growth_factor", "3"},
                      {"grad_scaler.growth_interval", "7"},
                      {"grad_scaler.init_scale", "1024"},
                      {"gradient_accumulation.adjust_scheduler", "true"},
                      {"gradient_accumulation.num_steps", "4"},
                      {"gradient_accumulation.sync_each_batch", "true"},
                      {"gradient_accumulation.sync_with_dataloader", "false"},
                      {"gradient_accumulation.weighting", "sum"},
                      {"keep_memory", "off"},
                      {"matmul_precision", "medium"},
                      {"precision", "bf16-mixed"},
                      {"project.automatic_checkpoint_naming", "true"},
                      {"project.directory", "out"},
                      {"project.total_limit", "3"},
                      {"recompute.blocks", "Block,Head"},
                      {"recompute.budget_mib", "64.5"},
                      {"recompute.check", "false"},
                      {"recompute.every", "2"},
                      {"recompute.keep", "matmul,aten::gelu"},
                      {"split_batches", "true"},
                      {"step_scheduler_with_optimizer", "false"},
                      {"synced_generators.cpu", "true"},
                      {"synced_generators.device", "true"},
                      {"timeout", "60"},
                      {"two_level_sums", "true"}};
const Values kReplicated{{"ddp.broadcast_buffers", "false"},
                         {"ddp.bucket_cap_mb", "10"},
                         {"ddp.comm_hook", "fp16"},
                         {"ddp.find_unused_parameters", "true"},
                         {"ddp.first_bucket_mb", "2"},
                         {"ddp.power_sgd.min_compression_rate", "3"},
                         {"ddp.power_sgd.rank", "2"},
                         {"ddp.power_sgd.seed", "5"},
                         {"ddp.power_sgd.start_iteration", "10"},
                         {"ddp.power_sgd.use_error_feedback", "false"},
                         {"ddp.power_sgd.warm_start", "false"},
                         {"ddp.static_graph", "true"},
                         {"strategy", "ddp"}};
const Values kSharded{{"fsdp.activation_checkpointing", "Block,Head"},
                      {"fsdp.auto_wrap", "false"},
                      {"fsdp.buffer_dtype", "bf16"},
                      {"fsdp.cast_forward_inputs", "false"},
                      {"fsdp.ignored_modules", "head,tail"},
                      {"fsdp.limit_gathered_mb", "1.5"},
                      {"fsdp.one_copy_per_host", "false"},
                      {"fsdp.output_dtype", "f32"},
                      {"fsdp.param_dtype", "bf16"},
                      {"fsdp.predivide_factor", "2"},
                      {"fsdp.reduce_dtype", "f32"},
                      {"fsdp.replicas", "2"},
                      {"fsdp.reshard_after_forward", "false"},
                      {"fsdp.shard_group_size", "2"},
                      {"fsdp.stage", "gradients"},
                      {"fsdp.unit_classes", "Block,Head"},
                      {"fsdp.unit_min_elements", "1000"},
                      {"fsdp.unit_names", "a,b"},
                      {"strategy", "zero2"}};

std::vector<Values> both_jobs() {
  auto replicated = kReplicated, sharded = kSharded;
  replicated.insert(kRuntime.begin(), kRuntime.end());
  sharded.insert(kRuntime.begin(), kRuntime.end());
  return {replicated, sharded};
}

TEST(OptionWays, TheTestSetsEveryOptionToAnotherValue) {
  std::set<std::string> set;
  for (const auto& values : both_jobs())
    for (const auto& [name, text] : values) {
      set.insert(name);
      EXPECT_NE(text, described(name).default_text) << name;
    }
  // Texts of several options, and what launchers of programs alone follow.
  set.insert({"ddp", "fsdp", "devices", "num_nodes"});
  for (const auto& option : runtime::program_options()) {
    const bool elsewhere = option.name.starts_with("trainer.");  // trainer_option_ways_test.cpp
    EXPECT_TRUE(option.code_only || elsewhere || set.contains(option.name)) << option.name << " is not tested here";
  }
}

TEST(OptionWays, ByCode) {
  for (const auto& values : both_jobs()) {
    options::RawOptions texts;
    for (const auto& [name, text] : values) texts[name] = {text, "code"};
    const auto in_code = runtime::with_given_options({}, texts, {});
    const auto resolved = runtime::written_options(runtime::resolved(in_code, {}));
    for (const auto& [name, text] : values) EXPECT_EQ(resolved.at(name), written(name, text)) << name;
  }
}

TEST(OptionWays, ByFlag) { expect_by_flag(both_jobs()); }

TEST(OptionWays, ByVariable) { expect_by_variable(both_jobs()); }

TEST(OptionWays, ByTheLine) { expect_by_line(both_jobs(), "MUSTER_PRECISION=64-true"); }

TEST(OptionWays, ByTheFile) {
  const auto file = std::filesystem::temp_directory_path() / ("muster_ways_" + std::to_string(getpid()) + ".yaml");
  for (const auto& values : both_jobs()) {
    std::ofstream yaml(file);
    yaml << "run:\n";
    for (const auto& [name, text] : values)
      yaml << "  " << name << ": " << (text.find(',') == std::string::npos ? text : "[" + text + "]") << "\n";
    yaml.close();
    expect_resolved(values, {"--config", file.string()});
  }
  std::filesystem::remove(file);
}

TEST(OptionWays, AKindOfDeterminismIsGivenToTheSwitch) {
  for (const auto* text : {"true", "false", "warn"})
    expect_resolved({{"deterministic", text}}, {std::string("--deterministic=") + text});
  expect_resolved({{"deterministic", "false"}}, {"--no-deterministic"});
  for (const auto& [flag, words] : {std::pair("--deterministic=maybe", "true, false or warn"),
                                    {"--matmul-precision=higher", "one of auto, highest, high, medium"}}) {
    Process process(muster_run({flag, rank_program(), "options"}));
    EXPECT_NE(process.wait(), 0);
    for (const auto* part : {"MU002", words})
      EXPECT_NE(process.error().find(part), std::string::npos) << part << " in " << process.error();
  }
}

TEST(OptionWays, DoorsCopyWhatTheyShareWithTheRuntime) {
  const auto other = [](auto& options) {
    runtime::visit_options([&](const char* name, auto get, const options::Description&) {
      if constexpr (requires { get(options); }) {
        using T = std::remove_reference_t<decltype(get(options))>;
        if constexpr (std::is_same_v<T, bool>) get(options) = !get(options);
        else if constexpr (std::is_arithmetic_v<T>) get(options) += 1;
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) get(options) = {name};
      }
    });
  };
  AcceleratorOptions accelerator;
  FabricOptions fabric;
  other(accelerator);
  other(fabric);
  const auto of_accelerator = runtime::accelerate(accelerator), of_fabric = runtime::fabric(fabric);
  EXPECT_EQ(of_accelerator.gradient_accumulation.num_steps, 2);
  EXPECT_EQ(of_accelerator.project.total_limit, 1);
  EXPECT_TRUE(of_accelerator.split_batches);
  EXPECT_EQ(of_accelerator.fp32_modules, accelerator.fp32_modules);
  EXPECT_FALSE(of_fabric.grad_scaler.enabled);
  EXPECT_EQ(of_fabric.num_nodes, 2);
  EXPECT_EQ(runtime::accelerate({.cpu = true, .mixed_precision = "bf16"}).accelerator, "cpu");
  EXPECT_EQ(runtime::accelerate({.mixed_precision = "bf16"}).precision, Precision("bf16-mixed"));
}

TEST(OptionWays, TheTableHasEveryFieldOfTheRuntime) {
  // A field that is added to the struct breaks this line: give it a line in runtime_fields.h, too.
  [[maybe_unused]] const auto& [accelerator, affinity, backend, benchmark, callbacks, cluster_reader, deterministic,
                                device_backend, devices, dispatch_batches, even_batches, fp32_modules, grad_scaler,
                                gradient_accumulation, keep_memory, matmul_precision, num_nodes, precision, project,
                                recompute, split_batches, step_scheduler_with_optimizer, strategy, synced_generators,
                                timeout, two_level_sums] = RuntimeOptions();
  std::set<std::string> fields;
  for (const auto& option : runtime::runtime_option_table().options)
    fields.insert(option.description.name.substr(0, option.description.name.find('.')));
  EXPECT_EQ(fields.size(), 26u);
}

TEST(OptionWays, TheApisShareDefaultsWithTheRuntime) {
  const auto of_accelerator = runtime::written_options(runtime::accelerate({}));
  const auto of_fabric = runtime::written_options(runtime::fabric({}));
  const auto of_runtime = runtime::written_options({});
  EXPECT_EQ(of_accelerator, of_runtime);
  EXPECT_EQ(of_fabric, of_runtime);
}

TEST(OptionWays, TheTableHasEveryFieldThatTheApisShareWithTheRuntime) {
  // A field that is added to one of the structs breaks its line: give it a line in runtime_fields.h, too.
  [[maybe_unused]] const auto& [a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19,
                                a20, a21, a22, a23, a24, a25, a26, a27] = AcceleratorOptions();
  [[maybe_unused]] const auto& [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
                                f20, f21, f22, f23] = FabricOptions();
  std::set<std::string> accelerator, fabric;
  runtime::visit_options([&](const char* name, auto get, const options::Description&) {
    const std::string path(name), field = path.substr(0, path.find('.'));
    if constexpr (requires(AcceleratorOptions& options) { get(options); }) accelerator.insert(field);
    if constexpr (requires(FabricOptions& options) { get(options); }) fabric.insert(field);
  });
  EXPECT_EQ(accelerator.size(), 24u) << "apart from cpu, gradient_accumulation_steps and mixed_precision";
  EXPECT_EQ(fabric.size(), 23u);
}

TEST(OptionWays, EveryOptionNamesAnExistingTestOfItsEffect) {
  std::string tests;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(MUSTER_SOURCE_DIR "/tests"))
    if (entry.path().extension() == ".cpp") {
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      tests += text.str();
    }
  auto all = run_option_table().descriptions();
  all.insert(all.end(), runtime::program_options().begin(), runtime::program_options().end());
  for (const auto& option : all) {
    const auto dot = option.tested_by.find('.');
    ASSERT_NE(dot, std::string::npos) << option.name;
    const auto in_source = "(" + option.tested_by.substr(0, dot) + ", " + option.tested_by.substr(dot + 1) + ")";
    EXPECT_NE(tests.find(in_source), std::string::npos) << option.name << " names " << option.tested_by;
  }
}

}  // namespace
}  // namespace muster::launcher::testing
