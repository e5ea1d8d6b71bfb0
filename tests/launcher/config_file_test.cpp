#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/config_calls.h"

namespace muster::launcher::testing {
namespace {

constexpr const char* kAccelerate =
    "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\ndowncast_bf16: 'no'\n"
    "enable_cpu_affinity: false\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_offload_params: false\n  fsdp_reshard_after_forward: SHARD_GRAD_OP\n  fsdp_state_dict_type: "
    "FULL_STATE_DICT\n"
    "  fsdp_transformer_layer_cls_to_wrap: Block,Head\n  fsdp_version: 1\nmachine_rank: 0\nmixed_precision: bf16\n"
    "num_machines: 1\nnum_processes: 2\nrdzv_backend: static\nsame_network: true\ntpu_env: []\nuse_cpu: false\n";

constexpr const char* kLightning =
    "seed_everything: 1\ntrainer:\n  accelerator: cpu\n  strategy:\n"
    "    class_path: lightning.pytorch.strategies.FSDPStrategy\n    init_args:\n      sharding_strategy: "
    "SHARD_GRAD_OP\n"
    "  devices: 2\n  precision: bf16-mixed\n  max_epochs: 3\n  benchmark: true\n  deterministic: warn\n  callbacks:\n  "
    "  - {class_path: EarlyStopping}\n"
    "  logger: null\nmodel: {width: 8}\ndata: {batch_size: 4}\n";

TEST(ConfigFile, RunFollowsTheFileOfAccelerate) {
  const UserFolders user;
  const auto file = user.write("default_config.yaml", kAccelerate);
  const auto ended = user.call({"run", "--config", file, "--no-prefix", rank_program(), "options"});
  ASSERT_EQ(ended.code, 0) << ended.error;
  for (const auto* line :
       {"precision=bf16-mixed", "strategy=fsdp", "fsdp.reshard_after_forward=false", "fsdp.unit_classes=Block,Head"})
    EXPECT_EQ(times(ended.out, std::string(line) + "\n"), 2) << line << " is missing in\n" << ended.out;
}

TEST(ConfigFile, OurSectionTakesNamesOfAccelerate) {
  const UserFolders user;
  const auto file =
      user.write("c.yaml",
                 "run:\n  num_processes: 4\n  num_machines: 2\n  machine_rank: 1\n  main_process_ip: alpha\n"
                 "  use_cpu: true\n  mixed_precision: bf16\n  strategy: fsdp\n"
                 "  fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n  grace: 2s\n");
  const auto shown = user.shown({"--config_file", file});
  EXPECT_EQ(shown.at("devices"), "2");
  EXPECT_EQ(shown.at("nodes"), "2");
  EXPECT_EQ(shown.at("node_rank"), "1");
  EXPECT_EQ(shown.at("main_address"), "alpha");
  EXPECT_EQ(shown.at("accelerator"), "cpu");
  EXPECT_EQ(shown.at("fsdp.shard_group_size"), "-1");
  EXPECT_EQ(shown.at("grace"), "2s");
  EXPECT_EQ(shown.at("ranks"), "4");
}

TEST(ConfigFile, OneOptionUnderTwoNamesIsRefused) {
  const UserFolders user;
  const auto file = user.write("c.yaml", "run:\n  devices: 2\n  num_processes: 4\n");
  const auto ended = user.call({"config", "show", "--config_file", file});
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.error.find("MU305"), std::string::npos) << ended.error;
}

TEST(ConfigFile, OfLightningTheTrainerIsFollowedAndTheRestIsTheProgram) {
  const UserFolders user;
  const auto file = user.write("cli.yaml", kLightning);
  for (const auto& text :
       {std::string(kLightning), "fit:\n  " + std::string("trainer: {devices: 2, max_epochs: 3, strategy: "
                                                          "fsdp, accelerator: cpu, precision: bf16-mixed}\n")}) {
    const auto shown = user.shown({"--config_file", user.write("cli.yaml", text)});
    EXPECT_EQ(shown.at("devices"), "2");
    EXPECT_EQ(shown.at("precision"), "bf16-mixed");
    EXPECT_EQ(shown.at("trainer.max_epochs"), "3");
    EXPECT_EQ(shown.at("accelerator"), "cpu");
  }
  const auto shown = user.shown({"--config_file", user.write("cli.yaml", kLightning)});
  EXPECT_EQ(shown.at("benchmark"), "true");
  EXPECT_EQ(shown.at("deterministic"), "warn");
  const auto ended = user.call({"config", "show", "--config_file", file});
  EXPECT_NE(ended.out.find("FSDPStrategy"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("fsdp.reshard_after_forward  false"), std::string::npos) << ended.out;
  EXPECT_NE(ended.error.find("left to the program: seed_everything, model, data\n"), std::string::npos) << ended.error;
  EXPECT_NE(ended.error.find("have no effect: trainer.callbacks\n"), std::string::npos) << ended.error;
}

TEST(ConfigFile, AnUnknownKeyIsNamedWithTheNearest) {
  const UserFolders user;
  const std::pair<std::string, std::string> files[] = {
      {std::string(kAccelerate) + "num_procesess: 2\n",
       "line 21: a file of `accelerate config` has no key 'num_procesess'"
       "; nearest is 'num_processes'"},
      {"compute_environment: LOCAL_MACHINE\nnum_processes: 1\n", "the key distributed_type is missing"},
      {"distributed_type: FSDP\nnum_processes: 1\nfsdp_config: {fsdp_shards: 2}\n",
       "has no key 'fsdp_config.fsdp_shards'"},
      {"trainer: {max_epoch: 3}\n", "the Trainer has no argument 'max_epoch'; nearest is 'max_epochs'"}};
  for (const auto& [text, words] : files) {
    const auto ended = user.call({"run", "--config", user.write("c.yaml", text), "true"});
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU480"), std::string::npos) << ended.error;
    EXPECT_NE(ended.error.find(words), std::string::npos) << ended.error;
  }
}

TEST(ConfigFile, WhatMusterCannotFollowIsRefusedByNameBeforeAProcessStarts) {
  const UserFolders user;
  const std::string base = "num_processes: 2\n";
  const std::string files[] = {"distributed_type: XLA\n" + base,
                               "distributed_type: TPU\n" + base,
                               "distributed_type: MEGATRON_LM\n" + base,
                               "distributed_type: MULTI_NPU\n" + base,
                               "distributed_type: MULTI_NEURON\n" + base,
                               "distributed_type: MULTI_WHAT\n" + base,
                               "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\n"
                               "ec2_instance_type: ml.p3.2xlarge\niam_role_name: role\n",
                               "distributed_type: MULTI_GPU\nmixed_precision: fp8\n" + base,
                               "distributed_type: MULTI_CPU\nmpirun_config: {mpirun_hostfile: /etc/hosts}\n" + base,
                               "distributed_type: DEEPSPEED\ndeepspeed_config: {offload_param_device: cpu}\n" + base,
                               "distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_clipping: 1.0}\n" + base,
                               "trainer: {accelerator: tpu}\n"};
  for (const auto& text : files) {
    const auto ended = user.call({"run", "--config", user.write("c.yaml", text), "echo", "started"});
    EXPECT_EQ(ended.code, 2) << text;
    EXPECT_NE(ended.error.find("MU481"), std::string::npos) << text << ended.error;
    EXPECT_EQ(ended.out.find("started"), std::string::npos);
  }
  const auto offload =
      user.write("c.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}\n" + base);
  const auto ended = user.call({"run", "--config", offload, "true"});
  EXPECT_NE(ended.error.find("MU197: " + offload + " line 2: fsdp_offload_params is 'true'"), std::string::npos)
      << ended.error;
}

TEST(ConfigFile, EachFileOfThePageIsFollowed) {
  const UserFolders user;
  const auto page = read_file(MUSTER_SOURCE_DIR "/docs/howto/config.md");
  const std::string begin = "```yaml\n", end = "```\n";
  int files = 0;
  for (size_t at = 0; (at = page.find(begin, at)) != std::string::npos; ++files) {
    at += begin.size();
    const auto shown = user.shown({"--config_file", user.write("c.yaml", page.substr(at, page.find(end, at) - at))});
    EXPECT_NE(shown.at("devices"), "auto");
    EXPECT_NE(shown.at("precision"), "32-true");
    EXPECT_NE(shown.at("strategy"), "auto");
  }
  EXPECT_EQ(files, 3);
}

TEST(ConfigFile, DeepSpeedsOwnFileIsFollowed) {
  const UserFolders user;
  const auto json = user.write("ds.json",
                               R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
  "offload_optimizer": {"device": "none"}}, "bf16": {"enabled": true}, "fp16": {"enabled": false},
  "gradient_accumulation_steps": 4, "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto"})");
  const auto file = user.write("c.yaml",
                               "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
                               "  deepspeed_config_file: " +
                                   json + "\n");
  const auto shown = user.shown({"--config_file", file});
  EXPECT_EQ(shown.at("strategy"), "zero3");
  EXPECT_EQ(shown.at("precision"), "bf16");
  EXPECT_EQ(shown.at("gradient_accumulation.num_steps"), "4");
  EXPECT_EQ(user.shown({"--config_file", file, "--zero_stage", "1", "--use_deepspeed"}).at("strategy"), "zero1");
  for (const auto* text : {R"({"optimizer": {"type": "AdamW"}})", R"({"gradient_clipping": 1.0})",
                           R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"}) {
    user.write("ds.json", text);
    const auto ended = user.call({"launch", "--config_file", file, "true"});
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU481: " + json), std::string::npos) << ended.error;
  }
}

TEST(ConfigFile, TheNumberOfRanksMustBeKnown) {
  const UserFolders user;
  const std::string files[] = {"distributed_type: MULTI_GPU\nnum_processes: -1\n", "distributed_type: MULTI_GPU\n",
                               "distributed_type: MULTI_GPU\nnum_processes: 3\nnum_machines: 2\nmain_process_ip: a\n",
                               "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: '1'\n"};
  for (const auto& text : files) {
    const auto ended = user.call({"run", "--config", user.write("c.yaml", text), "true"});
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU482"), std::string::npos) << text << ended.error;
  }
  const auto unsaid = user.write("c.yaml", files[0]);
  EXPECT_EQ(user.call({"run", "--devices", "1", "--config", unsaid, "true"}).code, 0);
  EXPECT_EQ(user.shown({"--num_processes", "4", "--config_file", user.write("c.yaml", files[2])}).at("devices"), "2");
  EXPECT_EQ(user.shown({"--config_file", user.write("c.yaml", "distributed_type: 'NO'\n")}).at("devices"), "1");
}

}  // namespace
}  // namespace muster::launcher::testing
