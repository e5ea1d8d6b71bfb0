#include <sys/stat.h>

#include <regex>
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
      {"distributed_type: FSDP\nnum_processes: 1\nfsdp_config: {offload_param: true}\n",
       "has no key 'fsdp_config.offload_param'; nearest is 'fsdp_offload_params'; correct it"},
      {"distributed_type: FSDP\nnum_processes: 1\nfsdp_confg: {fsdp_version: 2}\n",
       "has no key 'fsdp_confg.fsdp_version'; nearest is 'fsdp_config'; correct it"},
      {"distributed_type: FSDP\nnum_processes: 1\nipex_config: {ipex: false}\n",
       "has no key 'ipex_config.ipex'; the known ones are deepspeed_config, dynamo_config, fp8_config, fsdp_config, "
       "megatron_lm_config, mpirun_config, parallelism_config; correct it"},
      {"distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config: {zero_stge: 2}\n",
       "has no key 'deepspeed_config.zero_stge'; nearest is 'zero_stage'; correct it"},
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

/// A call with a file of DeepSpeed's own.
EndedCall with_deepspeed(const UserFolders& user, const std::string& json) {
  const auto path = user.write("ds.json", json);
  const auto file = user.write("c.yaml",
                               "distributed_type: DEEPSPEED\nnum_processes: 1\nuse_cpu: true\n"
                               "deepspeed_config:\n  deepspeed_config_file: " +
                                   path + "\n");
  return user.call({"launch", "-q", "--config_file", file, "/bin/echo", "started"});
}

TEST(ConfigFile, KeysOfDeepSpeedThatAskForNothingAreSilent) {
  const UserFolders user;
  const auto ended = with_deepspeed(user, R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
    "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}, "bf16": {"enabled": false, "bf16_optimizer_states": true},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none", "pin_memory": true}, "offload_param": null,
    "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1000000000, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 1e9, "zero_hpz_partition_size": 1,
    "zero_quantized_weights": false, "stage3_gather_16bit_weights_on_model_save": true},
    "activation_checkpointing": {"partition_activations": false, "number_checkpoints": null},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "steps_per_print": 1e5, "wall_clock_breakdown": False,
    "flops_profiler": {"profile_step": 3}, "moe": {"enabled": false}, "tensor_parallel": {"autotp_size": 0}, "gradient_predivide_factor": 1.0})");
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "[0] started\n");
  EXPECT_EQ(ended.error, "");
}

TEST(ConfigFile, KeysOfDeepSpeedWithoutEffectAreNamed) {
  const UserFolders user;
  const auto ended = with_deepspeed(user, R"({"train_batch_size": 64, "flops_profiler": {"enabled": true},
    "fp16": {"enabled": true, "loss_scale": 128}, "zero_optimization": {"stage": 2,
    "stage3_max_live_parameters": 5e8, "reduce_bucket_size": 1, "leaf_module": {"classes": ["A", "B"]}}})");
  EXPECT_EQ(ended.code, 0) << ended.error;
  for (const auto* key : {"train_batch_size (", "flops_profiler.enabled (", "fp16.loss_scale (",
                          "zero_optimization.stage3_max_live_parameters (--fsdp-limit-gathered-mb",
                          "zero_optimization.reduce_bucket_size (", "zero_optimization.leaf_module.classes ("})
    EXPECT_NE(ended.error.find(key), std::string::npos) << key << " is missing in\n" << ended.error;
  EXPECT_EQ(times(ended.error, "have no effect: "), 1) << ended.error;
}

TEST(ConfigFile, KeysOfDeepSpeedThatWouldBeAnotherTrainingAreRefused) {
  const UserFolders user;
  for (const auto& [key, json] :
       {std::pair{"activation_checkpointing.partition_activations",
                  R"({"activation_checkpointing": {"partition_activations": true}})"},
        std::pair{"activation_checkpointing.cpu_checkpointing",
                  R"({"activation_checkpointing": {"cpu_checkpointing": true}})"},
        std::pair{"zero_optimization.zero_quantized_weights",
                  R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true}})"},
        std::pair{"zero_optimization.cpu_offload", R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})"},
        std::pair{"zero_optimization", R"({"zero_optimization": true})"},
        std::pair{"moe.enabled", R"({"moe": {"enabled": true}})"},
        std::pair{"amp.enabled", R"({"amp": {"enabled": true, "opt_level": "O1"}})"},
        std::pair{"elasticity.enabled", R"({"elasticity": {"enabled": true, "micro_batch_sizes": [2, 4]}})"},
        std::pair{"tensor_parallel.autotp_size", R"({"tensor_parallel": {"autotp_size": 2}})"},
        std::pair{"compression_training.weight_quantization.shared_parameters.enabled",
                  R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})"},
        std::pair{"data_types.grad_accum_dtype", R"({"data_types": {"grad_accum_dtype": "bf16"}})"}}) {
    const auto ended = with_deepspeed(user, json);
    EXPECT_EQ(ended.code, 2) << json;
    EXPECT_NE(ended.error.find("MU481: " + user.path() + "/ds.json line 1: " + key + " is given"), std::string::npos)
        << ended.error;
    EXPECT_EQ(ended.out, "");
  }
}

TEST(ConfigFile, AnUnknownKeyOfDeepSpeedIsNamedWithTheNearestOfItsSection) {
  const UserFolders user;
  for (const auto& [json, words] :
       {std::pair{R"({"zero_optimization": {"stge": 2}})", "'zero_optimization.stge'; nearest is 'stage'; "},
        std::pair{R"({"zero_optimisation": {"stage": 2}})", "'zero_optimisation'; nearest is 'zero_optimization'; "},
        std::pair{R"({"zero_optimization": {"offload_parm": {"device": "cpu"}}})",
                  "'zero_optimization.offload_parm'; nearest is 'offload_param'; "},
        std::pair{R"({"gradient_acumulation_steps": 2})",
                  "'gradient_acumulation_steps'; nearest is 'gradient_accumulation_steps'; "},
        std::pair{R"({"bf16": {"stage": true}})",
                  "'bf16.stage'; the known ones are enabled, check_grad_overflow, immediate_grad_update, "
                  "bf16_master_weights_and_grads, bf16_optimizer_states; "}}) {
    const auto ended = with_deepspeed(user, json);
    EXPECT_EQ(ended.code, 2) << json;
    EXPECT_NE(ended.error.find("MU480: " + user.path() + "/ds.json line 1: DeepSpeed's file has no key " + words),
              std::string::npos)
        << ended.error;
  }
}

TEST(ConfigFile, ThatEachRankBuildsTheWholeModelIsSaid) {
  const UserFolders user;
  const std::string base = "num_processes: 1\nuse_cpu: true\n",
                    why = " (each rank builds the whole model in its memory)";
  for (const auto& [name, text] :
       {std::pair{"zero3_init_flag",
                  "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, zero3_init_flag: true}\n"},
        std::pair{"fsdp_cpu_ram_efficient_loading",
                  "distributed_type: FSDP\nfsdp_config: {fsdp_cpu_ram_efficient_loading: True}\n"}}) {
    auto off = std::string(text);
    off.replace(off.find("rue}") - 1, 4, "No");
    const auto file = user.write("c.yaml", text + base);
    EXPECT_NE(user.call({"launch", "-q", "--config_file", file, "true"}).error.find(name + why), std::string::npos)
        << name;
    EXPECT_EQ(user.call({"launch", "-q", "--config_file", user.write("c.yaml", off + base), "true"}).error, "") << off;
  }
}

TEST(ConfigFile, APipeIsReadOnce) {
  const UserFolders user;
  for (const auto& [text, devices] :
       {std::pair{std::string(kAccelerate), "devices  *2 "}, std::pair{std::string(kLightning), "devices  *2 "},
        std::pair{std::string("run: {devices: 3}\n"), "devices  *3 "}}) {
    const auto ended = user.call({"config", "show", "--config_file", "/dev/stdin"}, {}, text);
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_TRUE(std::regex_search(ended.out, std::regex(devices))) << ended.out;
  }
}

TEST(ConfigFile, APipeWithoutAWriterIsRefused) {  // MU004
  const UserFolders user;
  const auto pipe = user.path() + "/pipe.yaml";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& words :
       {std::vector<std::string>{"launch", "--config_file", pipe, "true"}, {"run", "--config", pipe, "true"}}) {
    const auto ended = user.call(words);
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU004: the option file '" + pipe + "' is a pipe to which nobody writes"),
              std::string::npos)
        << ended.error;
  }
}

TEST(ConfigFile, IdsOfGpusSayHowManyRanksThereAreOnACpu) {
  const UserFolders user;
  const auto none = user.accelerators(0);
  const std::string base = "compute_environment: LOCAL_MACHINE\ndistributed_type: ";
  for (const auto& [text, ranks] :
       {std::pair{base + "MULTI_GPU\ngpu_ids: 1,3\nnum_processes: 2\n", "2"},
        std::pair{base + "'NO'\ngpu_ids: '0,'\nnum_processes: 1\n", "1"}, std::pair{base + "'NO'\ngpu_ids: '0'\n", "1"},
        std::pair{base + "MULTI_GPU\ngpu_ids: all\nnum_processes: 3\n", "3"},
        std::pair{std::string("run:\n  gpu_ids: 1,3\n"), "2"}}) {
    const auto file = user.write("c.yaml", text);
    EXPECT_EQ(user.shown({"--config_file", file}, none).at("ranks"), ranks) << text;
    const auto ended = user.call({"launch", "-q", "--config_file", file, "/bin/echo", "started"}, none);
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_EQ(times(ended.out, "started\n"), std::stoi(ranks)) << text;
  }
  const auto file = user.write("c.yaml", base + "MULTI_GPU\ngpu_ids: 1,3\nnum_processes: 2\n");
  EXPECT_EQ(user.shown({"--config_file", file}, user.accelerators(4)).at("devices"), "1,3");
  EXPECT_EQ(user.shown({"--accelerator", "cpu", "--config_file", file}, user.accelerators(2)).at("ranks"), "2");
  const auto ended = user.call({"launch", "--config_file", file, "true"}, user.accelerators(2));
  EXPECT_NE(ended.error.find("MU030: " + file + " line 3 (gpu_ids) is '1,3': there is no device 3"), std::string::npos)
      << ended.error;
  const auto ours = user.write("c.yaml", "run:\n  devices: 0,9\n");
  EXPECT_NE(user.call({"run", "--config", ours, "true"}, none).error.find("MU030: " + ours + " line 2 is '0,9'"),
            std::string::npos);
  EXPECT_NE(
      user.call({"run", "true"}, {"MUSTER_DEVICES=0", none.back()}).error.find("MU030: variable MUSTER_DEVICES is '0'"),
      std::string::npos);
}

TEST(ConfigFile, OfLightningBooleansAndTimesAreReadAsThere) {
  const UserFolders user;
  const auto file =
      user.write("cli.yaml",
                 "fit:\n  trainer:\n    accelerator: cpu\n    fast_dev_run: True\n    barebones: False\n"
                 "    logger: False\n    enable_checkpointing: True\n    max_time: {hours: 3}\n    strategy:\n"
                 "      class_path: DDPStrategy\n      init_args: {timeout: 0:30:00, find_unused_parameters: True}\n");
  const auto ended = user.call({"run", "--config", file, "--no-prefix", rank_program(), "options"});
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_EQ(ended.error, "");
  for (const auto* line : {"trainer.fast_dev_run=1", "trainer.max_time=00:03:00:00", "timeout=1800s", "strategy=ddp",
                           "ddp.find_unused_parameters=true"})
    EXPECT_EQ(times(ended.out, std::string(line) + "\n"), 1) << line << " is missing in\n" << ended.out;
}

TEST(ConfigFile, TheNumberOfRanksMustBeKnown) {
  const UserFolders user;
  const std::string files[] = {"distributed_type: MULTI_GPU\nnum_processes: -1\n", "distributed_type: MULTI_GPU\n",
                               "distributed_type: MULTI_GPU\nnum_processes: 3\nnum_machines: 2\nmain_process_ip: a\n",
                               "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: '1'\n"};
  for (const auto& text : files) {
    const auto ended = user.call({"run", "--config", user.write("c.yaml", text), "true"}, user.accelerators(2));
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
