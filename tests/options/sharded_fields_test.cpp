#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/options_text.h"
#include "muster/testing/thrown.h"
#include "options/strategy_fields.h"
#include "options/strategy_request.h"

namespace muster::strategy {
namespace {

using muster::testing::thrown_id;
using options::Follow;
using options::Place;

FSDP of_python(const std::string& text) {
  const auto fields = options::split_pairs(text, "launcher", "fsdp.", "MU196");
  return *resolve_strategy("fsdp", {.fields = fields}, {}).sharding();
}

TEST(PythonFields, BecomeOurs) {
  EXPECT_EQ(of_python("sharding_strategy=FULL_SHARD").stage, ShardStage::full);
  EXPECT_FALSE(of_python("sharding_strategy=2").reshard_after_forward);
  EXPECT_EQ(of_python("sharding_strategy=NO_SHARD").stage, ShardStage::none);
  EXPECT_EQ(of_python("sharding_strategy=hybrid_shard").shard_group_size, -1);
  EXPECT_FALSE(of_python("reshard_after_forward=false").reshard_after_forward);
  EXPECT_FALSE(of_python("reshard_after_forward=SHARD_GRAD_OP").reshard_after_forward);
  EXPECT_FALSE(of_python("auto_wrap_policy=NO_WRAP").auto_wrap);
  EXPECT_EQ(of_python("auto_wrap_policy=SIZE_BASED_WRAP,min_num_params=20").unit_min_elements, 20);
  EXPECT_EQ(of_python("auto_wrap_policy=SIZE_BASED_WRAP").unit_min_elements, 100000000);
  EXPECT_EQ(of_python("min_num_params=20").unit_min_elements, 20);
  EXPECT_EQ(of_python("transformer_cls_names_to_wrap=Block").unit_classes, std::vector<std::string>{"Block"});
  EXPECT_EQ(of_python("ignored_modules=head.*").ignored_modules, std::vector<std::string>{"head.*"});
  EXPECT_EQ(of_python("device_mesh=(2, 4)").shard_group_size, 4);
  EXPECT_EQ(of_python("device_mesh=(2, 4)").replicas, 2);
  EXPECT_EQ(of_python("mixed_precision_policy=fp16").param_dtype, "f16");
  EXPECT_EQ(of_python("mixed_precision_policy=bf16").reduce_dtype, "bf16");
  EXPECT_EQ(of_python("mixed_precision=bf16").buffer_dtype, "bf16");
  EXPECT_EQ(of_python("mp_policy=no").param_dtype, "");
  EXPECT_EQ(of_python("mesh=2x2").shard_group_size, 2);
  EXPECT_EQ(of_python("reshard_after_forward=2").reshard_after_forward, 2);
  EXPECT_EQ(of_python("reshard_after_forward=True").reshard_after_forward, true);
  EXPECT_EQ(of_python("buffer_dtype=bf16,cast_forward_inputs=no,output_dtype=f32").output_dtype, "f32");
  EXPECT_FALSE(of_python("cast_forward_inputs=no").cast_forward_inputs);
}

TEST(PythonFields, OfFairscaleBecomeOurs) {
  EXPECT_EQ(of_python("compute_dtype=torch.float16").param_dtype, "f16");
  EXPECT_EQ(of_python("fp32_reduce_scatter=True").reduce_dtype, "f32");
  EXPECT_EQ(of_python("reduce_fp16=True").reduce_dtype, "f16");
  EXPECT_EQ(of_python("mixed_precision=True").param_dtype, "f16");
  EXPECT_EQ(of_python("mixed_precision=False").param_dtype, "");
  EXPECT_EQ(of_python("gradient_predivide_factor=2").predivide_factor, 2);
  EXPECT_FALSE(of_python("force_input_to_fp32=True").cast_forward_inputs);
  EXPECT_EQ(thrown_id([] { of_python("move_params_to_cpu=True"); }), "MU197");
  EXPECT_EQ(thrown_id([] { of_python("process_group_reduce_scatter=g"); }), "MU197");
  for (const char* text : {"flatten_parameters=True", "bucket_cap_mb=25", "verbose=True", "move_grads_to_cpu=False",
                           "broadcast_model_buffers=True", "compute_device=cuda"})
    for (const auto& field : sharded_table().options)
      EXPECT_EQ(field.write(of_python(text)), field.description.default_text) << text;
}

TEST(PythonFields, OfActivationCheckpointingAreBlocksToRecompute) {
  using Blocks = std::vector<std::string>;
  const auto blocks = [](const char* text) { return of_python(text).activation_checkpointing.options().blocks; };
  EXPECT_EQ(blocks("activation_checkpointing=true"), Blocks{"auto"});
  EXPECT_EQ(blocks("activation_checkpointing=Block"), Blocks{"Block"});
  EXPECT_EQ(blocks("activation_checkpointing_policy=Block,Head"), (Blocks{"Block", "Head"}));
  EXPECT_EQ(blocks("activation_checkpointing=n"), Blocks());
}

TEST(PythonFields, WithoutACounterpartAreRefusedByName) {
  for (const char* text :
       {"cpu_offload=true", "offload_params=true", "activation_checkpointing_offload=1",
        "backward_prefetch=BACKWARD_POST", "state_dict_type=LOCAL_STATE_DICT", "param_init_fn=f", "process_group=g",
        "process_group_backend=gloo", "timeout=60", "ignored_states=w", "shard_placement_fn=f",
        "offload_policy=CPUOffloadPolicy", "cpu_offload=CPUOffload(offload_params=True)", "move_params_to_cpu=Y"})
    EXPECT_EQ(thrown_id([&] { of_python(text); }), "MU197") << text;
  for (const char* text :
       {"fp32_reduce_scatter=perhaps", "sharding_strategy=6", "auto_wrap_policy=ANY", "state_dict_type=ANY",
        "device_mesh=4", "backward_prefetch=ANY", "reshard_after_forward=-1", "reshard_after_forward=some"})
    EXPECT_EQ(thrown_id([&] { of_python(text); }), "MU002") << text;
}

TEST(PythonFields, ThatMakeNoDifferenceHereAreTaken) {
  for (const char* text : {"cpu_offload=False", "cpu_offload=None", "activation_checkpointing=n", "fsdp_version=2",
                           "forward_prefetch=true", "limit_all_gathers=true", "sync_module_states=true",
                           "use_orig_params=true", "cpu_ram_efficient_loading=true", "state_dict_type=FULL_STATE_DICT",
                           "backward_prefetch=1", "state_dict_config=FullStateDictConfig",
                           "optim_state_dict_config=FullOptimStateDictConfig", "device_id=0", "offload_policy=none"}) {
    const auto options = of_python(text);
    for (const auto& field : sharded_table().options) EXPECT_EQ(field.write(options), field.write(FSDP{})) << text;
  }
}

/// What the reference says of a word.
std::string taken_as(const options::ForeignWord& word) {
  const std::string text(word.text), accepted(word.accepted);
  if (word.follow == Follow::in_code) return text;
  if (word.follow == Follow::option) return text + (accepted.empty() ? "" : ", unless " + accepted);
  if (word.follow == Follow::ignored) return "no effect" + (text.empty() ? "" : ": " + text);
  if (accepted.empty()) return "refused";
  return accepted == "false none" ? "refused where true" : "refused unless " + accepted.substr(0, accepted.find(' '));
}

TEST(ShardedFields, AreAllThatCanBeGivenAsText) {
  std::vector<std::string> names;
  for (const auto& field : sharded_table().descriptions()) {
    EXPECT_FALSE(field.help.empty());
    names.push_back(field.name);
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  std::set<std::string> variables;
  for (const auto& field : options::foreign_words(Place::sharding)) {
    EXPECT_FALSE(taken_as(field).empty());
    if (!field.variable.empty()) {
      EXPECT_TRUE(variables.insert(std::string(field.variable)).second &&
                  (field.variable.starts_with("FSDP_") || field.variable.starts_with("PARALLELISM_CONFIG_")))
          << field.variable;
    }
  }
}

TEST(ShardedFields, AndNamesStandInTheReference) {
  std::ostringstream page;
  page << std::ifstream(MUSTER_SOURCE_DIR "/docs/reference/strategies.md").rdbuf();
  const auto expect_row = [&](const std::string& row) { EXPECT_NE(page.str().find(row), std::string::npos) << row; };
  for (const auto name : Strategy::kNames) expect_row("`" + std::string(name) + "`");
  for (const auto& alias : options::foreign_words(Place::strategy))
    expect_row("| `" + std::string(alias.word) + "` | " +
               (alias.follow == Follow::refused ? "refused (MU197): " + std::string(alias.text)
                                                : "`" + std::string(alias.text) + "`") +
               (alias.also.empty() ? " |" : " with `" + std::string(alias.also) + "` |"));
  for (const auto& field : sharded_table().descriptions()) expect_row("| `" + field.name + "` | " + field.help + " |");
  for (const auto& field : options::foreign_words(Place::sharding))
    expect_row("| `" + std::string(field.word) + "` | " +
               (field.variable.empty() ? "–" : "`" + std::string(field.variable) + "`") + " | " + taken_as(field) +
               " |");
}

}  // namespace
}  // namespace muster::strategy
