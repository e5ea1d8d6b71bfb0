#include <chrono>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "options/program_options.h"

namespace muster::runtime {
namespace {

using muster::testing::thrown;
using muster::testing::thrown_id;

TEST(Requests, TheLineCountsMoreThanASingleVariable) {
  const Environment both{{"MUSTER_OPTIONS", "precision=bf16-true,fsdp.stage=gradients,project.directory=x"},
                         {"MUSTER_PRECISION", "64-true"},
                         {"MUSTER_FSDP", "stage=full,unit_min_elements=5"},
                         {"MUSTER_TIMEOUT", "30"}};
  const auto options = resolved({}, both);
  EXPECT_EQ(options.precision, Precision("bf16-true"));
  EXPECT_EQ(options.project.directory, "x");
  EXPECT_EQ(options.strategy.sharding()->stage, ShardStage::gradients);
  EXPECT_EQ(options.strategy.sharding()->unit_min_elements, 5);
  EXPECT_EQ(options.timeout, std::chrono::seconds(30));
}

TEST(Requests, EachIsNotedWithItsSource) {
  const Environment variables{
      {"MUSTER_OPTIONS", R"({"precision": "bf16", "set_by": {"precision": "run.yaml line 3"}})"},
      {"MUSTER_TIMEOUT", "30"},
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}};
  EXPECT_EQ(given_option_notes(variables),
            (std::vector<std::string>{
                "option gradient_accumulation.num_steps: 4 (variable ACCELERATE_GRADIENT_ACCUMULATION_STEPS)",
                "option precision: bf16 (run.yaml line 3)", "option timeout: 30 (variable MUSTER_TIMEOUT)"}));
  EXPECT_TRUE(given_option_notes({}).empty());
}

TEST(Requests, OneTextSetsSeveralOptions) {
  const auto sharded = resolved({}, {{"MUSTER_FSDP", "unit_classes=Block,Head,sharding_strategy=SHARD_GRAD_OP"}});
  EXPECT_EQ(sharded.strategy.sharding()->unit_classes, (std::vector<std::string>{"Block", "Head"}));
  EXPECT_FALSE(sharded.strategy.sharding()->reshard_after_forward);
  const auto replicated = resolved({}, {{"MUSTER_OPTIONS", "{ddp: {bucket_cap_mb: 7, static_graph: true}}"}});
  EXPECT_EQ(std::get<DDP>(replicated.strategy.options()).bucket_cap_mb, 7);
  EXPECT_TRUE(std::get<DDP>(replicated.strategy.options()).static_graph);
}

TEST(Requests, MustNotContradictTheProgram) {
  EXPECT_EQ(thrown_id([] { resolved({.even_batches = false}, {{"MUSTER_EVEN_BATCHES", "true"}}); }), "MU171");
  EXPECT_EQ(thrown_id([] { resolved({.keep_memory = "on"}, {{"MUSTER_KEEP_MEMORY", "0"}}); }), "MU171");
  EXPECT_EQ(thrown_id([] { resolved({.strategy = "ddp"}, {{"MUSTER_OPTIONS", "fsdp.stage=full"}}); }), "MU171");
  EXPECT_EQ(thrown_id([] { resolved({.strategy = "fsdp"}, {{"MUSTER_OPTIONS", "ddp.static_graph=1"}}); }), "MU171");
  EXPECT_EQ(thrown_id([] {
              resolved({.strategy = DDP{.bucket_cap_mb = 3}}, {{"MUSTER_DDP_BUCKET_CAP_MB", "4"}});
            }),
            "MU171");
  EXPECT_FALSE(resolved({.even_batches = false}, {{"MUSTER_EVEN_BATCHES", "false"}}).even_batches);
}

TEST(Requests, UnknownNamesGetTheNearestAndAllKnownOnes) {
  const auto message = thrown([] { resolved({}, {{"MUSTER_OPTIONS", "presision=bf16"}}); });
  EXPECT_EQ(message.substr(0, 5), "MU001");
  EXPECT_NE(message.find("nearest is 'precision'; the known ones are accelerator, "), std::string::npos) << message;
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_OPTIONS", "bf16"}}); }), "MU300");
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_OPTIONS", "fsdp.unit_size=3"}}); }), "MU196");
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_OPTIONS", "ddp.bucket=3"}}); }), "MU001");
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_DDP", "bucket=3"}}); }), "MU196");
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_OPTIONS", "even_batches=perhaps"}}); }), "MU002");
}

TEST(Requests, NamesOfALauncherAreSaidToBeItsOwn) {
  const auto alone = thrown([] { resolved({}, {{"MUSTER_OPTIONS", "precision=bf16,nodes=2"}}); });
  EXPECT_EQ(alone.substr(0, 5), "MU306");
  EXPECT_NE(alone.find("option 'nodes' is one of `muster run`"), std::string::npos) << alone;
  const auto other = thrown([] { resolved({}, {{"MUSTER_OPTIONS", "num_processes=2"}}); });
  EXPECT_EQ(other.substr(0, 5), "MU306");
  EXPECT_NE(other.find("for `muster run` it is --devices"), std::string::npos) << other;
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_OPTIONS", "{options: precision=bf16}"}}); }), "MU001");
}

TEST(Requests, AContradictionNamesWhatTheUserWrote) {
  const Environment forwarded{
      {"MUSTER_OPTIONS", R"({"precision":"64-true","set_by":{"precision":"flag --precision"}})"}};
  const auto message = thrown([&] { resolved({.precision = "bf16-mixed"}, forwarded); });
  EXPECT_NE(message.find("by the flag --precision, for '64-true'"), std::string::npos) << message;
  EXPECT_EQ(message.find("MUSTER_OPTIONS"), std::string::npos) << message;
}

TEST(Requests, AliasesInOneTextCountAsTheirSourceDoes) {
  const auto options =
      resolved({}, {{"MUSTER_OPTIONS", "ddp.power_sgd.rank=3"}, {"MUSTER_DDP", "matrix_approximation_rank=2"}});
  EXPECT_EQ(std::get<DDP>(options.strategy.options()).power_sgd.rank, 3);
  EXPECT_EQ(thrown_id([] { resolved({}, {{"MUSTER_OPTIONS", "precision=bf16,mixed_precision=bf16"}}); }), "MU305");
}

TEST(Requests, VariablesOfOtherToolsCountLeast) {
  const Environment accelerate{{"ACCELERATE_MIXED_PRECISION", "bf16"},
                               {"ACCELERATE_USE_CPU", "true"},
                               {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                               {"ACCELERATE_USE_DEEPSPEED", "true"},
                               {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "1"}};
  const auto options = resolved({}, accelerate);
  EXPECT_EQ(options.precision, Precision("bf16-mixed"));
  EXPECT_EQ(options.accelerator, "cpu");
  EXPECT_EQ(options.gradient_accumulation.num_steps, 4);
  EXPECT_EQ(options.strategy.name(), "zero1");
  auto ours = accelerate;
  ours.set("MUSTER_PRECISION", "64-true");
  EXPECT_EQ(resolved({}, ours).precision, Precision("64-true"));
  // Accelerate's launcher always sets it.
  EXPECT_EQ(resolved({.precision = "bf16-mixed"}, {{"ACCELERATE_MIXED_PRECISION", "no"}}).precision,
            Precision("bf16-mixed"));
  const Environment lightning{{"LT_PRECISION", "16-true"}, {"LT_STRATEGY", "ddp"}, {"LT_DEVICES", "2"}};
  EXPECT_EQ(resolved({}, lightning).precision, Precision("16-true"));
  EXPECT_EQ(resolved({}, lightning).devices->text(), "2");
  auto started = lightning;
  started.set("MUSTER_JOB", "job");
  EXPECT_FALSE(resolved({}, started).devices) << "our launcher has chosen already";
}

TEST(Requests, SizesOfAMeshAreThoseOfAccelerate) {
  const Environment mesh{{"MUSTER_STRATEGY", "fsdp"},
                         {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2"},
                         {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "4"},
                         {"PARALLELISM_CONFIG_TP_SIZE", "1"}};
  EXPECT_EQ(resolved({}, mesh).strategy.sharding()->shard_group_size, 4);
  EXPECT_EQ(resolved({}, mesh).strategy.sharding()->replicas, 2);
  auto tensor_parallel = mesh;
  tensor_parallel.set("PARALLELISM_CONFIG_TP_SIZE", "2");
  EXPECT_EQ(thrown_id([&] { resolved({}, tensor_parallel); }), "MU197");
}

TEST(Requests, UnknownVariablesOfThoseFamiliesAreNamedOnce) {
  const Environment variables{{"ACCELERATE_DYNAMO_BACKEND", "NO"},
                              {"ACCELERATE_FP8_BACKEND", "te"},
                              {"FSDP_VERSION", "2"},
                              {"LT_CLI_USED", "1"},
                              {"PL_GLOBAL_SEED", "3"},
                              {"PLATFORM", "x"},
                              {"LT_PRECISION", "32-true"},
                              {"ACCELERATE_DYNAMO_MODE", "max-autotune"}};
  const auto text = unknown_variables(variables);
  EXPECT_NE(text.find(": ACCELERATE_DYNAMO_MODE, ACCELERATE_FP8_BACKEND, PL_GLOBAL_SEED; "), std::string::npos) << text;
  EXPECT_EQ(unknown_variables({{"HOME", "/h"}, {"FSDP_USE_ORIG_PARAMS", "true"}}), "");
}

TEST(Requests, MisspeltVariablesAreNamedWithTheNearest) {
  const auto text = misspelt_variables({{"MUSTER_PRECISON", "bf16"},
                                        {"MUSTER_TEST_X", "1"},
                                        {"MUSTER_MODEL_RATE", "1"},
                                        {"MUSTER_DATA_ROWS", "1"},
                                        {"MUSTER_FSDP_STAGE", "full"}});
  EXPECT_EQ(text.find("variables that Muster does not read: MUSTER_PRECISON (nearest is MUSTER_PRECISION); "), 0U)
      << text;
  std::ifstream page(MUSTER_SOURCE_DIR "/docs/howto/environment.md");
  const std::string words{std::istreambuf_iterator<char>(page), {}};
  const std::regex name("`(MUSTER_[A-Z_]+)`");
  int named = 0;
  for (std::sregex_iterator at(words.begin(), words.end(), name), end; at != end; ++at, ++named)
    EXPECT_EQ(misspelt_variables({{(*at)[1].str(), "1"}}), "");
  EXPECT_GT(named, 20);
}

TEST(Requests, TimeOutsAreSecondsOrDurations) {
  const auto timeout = [](const char* text) { return resolved({}, {{"MUSTER_TIMEOUT", text}}).timeout; };
  EXPECT_EQ(timeout("30"), std::chrono::seconds(30));
  EXPECT_EQ(timeout("30s"), std::chrono::seconds(30));
  EXPECT_EQ(timeout("5min"), std::chrono::minutes(5));
  EXPECT_EQ(timeout("0s"), RuntimeOptions().timeout);
  for (const auto* wrong : {"-1", "-1s", "soon", "1e9", "300000000h"})
    EXPECT_EQ(thrown_id([&] { timeout(wrong); }), "MU021") << wrong;
}

}  // namespace
}  // namespace muster::runtime
