#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cluster/listening_socket.h"
#include "launcher/config_calls.h"

namespace muster::launcher::testing {
namespace {

using Words = std::vector<std::string>;

TEST(LaunchFlags, StartAsManyRanksAsTheyAskForOnTheCpuToo) {
  const UserFolders user;
  for (const auto& flags : {Words{"--cpu", "--num_processes", "3"}, Words{"--cpu", "--num-processes=3"}}) {
    Words words{"launch", "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--no_python", "/bin/echo", "a rank", "--cpu"});
    const auto ended = user.call(words);
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_EQ(times(ended.out, "a rank --cpu\n"), 3) << ended.out;
    EXPECT_EQ(ended.error, "");
  }
}

TEST(LaunchFlags, BecomeOurOptions) {
  const UserFolders user;
  const auto shown = user.shown({"--num_processes",
                                 "8",
                                 "--num-machines",
                                 "2",
                                 "--machine_rank",
                                 "1",
                                 "--main_process_ip",
                                 "alpha",
                                 "--main_process_port",
                                 "5555",
                                 "--mixed_precision",
                                 "bf16",
                                 "--use_deepspeed",
                                 "--zero_stage",
                                 "3",
                                 "--gradient_accumulation_steps",
                                 "4",
                                 "--num_cpu_threads_per_process",
                                 "3",
                                 "--log_dir",
                                 "logs",
                                 "-t",
                                 "3",
                                 "-q"});
  const std::pair<const char*, const char*> wanted[] = {
      {"devices", "4"},      {"nodes", "2"},        {"node_rank", "1"},    {"main_address", "alpha"},
      {"main_port", "5555"}, {"precision", "bf16"}, {"strategy", "zero3"}, {"gradient_accumulation.num_steps", "4"},
      {"threads", "3"},      {"log_dir", "logs"},   {"ranks", "8"}};
  for (const auto& [name, value] : wanted) EXPECT_EQ(shown.at(name), value) << name;
}

TEST(LaunchFlags, OfFsdpAndParallelismConfigBecomeOptionsOfSharding) {
  const UserFolders user;
  const auto shown = user.shown({"--use_fsdp", "--fsdp_version", "2", "--fsdp-reshard-after-forward", "false",
                                 "--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "1000",
                                 "--use_parallelism_config", "--parallelism_config_dp_replicate_size", "2",
                                 "--parallelism_config_dp_shard_size", "4", "--num_processes", "8"});
  EXPECT_EQ(shown.at("strategy"), "fsdp");
  EXPECT_EQ(shown.at("fsdp.reshard_after_forward"), "false");
  EXPECT_EQ(shown.at("fsdp.unit_min_elements"), "1000");
  EXPECT_EQ(shown.at("fsdp.replicas"), "2");
  EXPECT_EQ(shown.at("fsdp.shard_group_size"), "4");
}

TEST(LaunchFlags, OursStandBesideTheirs) {
  const UserFolders user;
  const auto shown = user.shown({"--num_processes", "2", "--strategy", "hsdp", "--timeout", "9", "--options",
                                 "precision=bf16-true,even_batches=false"});
  EXPECT_EQ(shown.at("devices"), "2");
  EXPECT_EQ(shown.at("strategy"), "hsdp");
  EXPECT_EQ(shown.at("precision"), "bf16-true");
  EXPECT_EQ(shown.at("even_batches"), "false");
  // Ranks of all machines, whose number may be said under our name.
  EXPECT_EQ(user.shown({"--num_processes", "8", "--nodes", "4", "--main-address", "alpha"}).at("devices"), "2");
  EXPECT_EQ(user.shown({"--strategy", "fsdp", "--fsdp_min_num_params", "1000"}).at("strategy"), "fsdp");
}

TEST(LaunchFlags, CountMoreThanVariablesAndTheseMoreThanTheFile) {
  const UserFolders user;
  const auto file = user.write("c.yaml", "run:\n  num_processes: 2\n  mixed_precision: bf16\n  timeout: 7\n");
  const std::vector<std::string> variables{"MUSTER_PRECISION=16-mixed", "MUSTER_TIMEOUT=8"};
  const auto ended = user.call({"config", "show", "--config_file", file, "--mixed_precision", "no"}, variables);
  ASSERT_EQ(ended.code, 0) << ended.error;
  for (const auto& [name, rest] : {std::pair{"devices", "2      " + file + " line 2 (num_processes)"},
                                   std::pair{"nodes", std::string("1      default")},
                                   std::pair{"precision", std::string("no     flag --mixed_precision")},
                                   std::pair{"timeout", std::string("8      variable MUSTER_TIMEOUT")}}) {
    const auto at = ended.out.find(std::string("\n") + name);
    ASSERT_NE(at, std::string::npos) << name << "\n" << ended.out;
    EXPECT_NE(ended.out.substr(at + 1, ended.out.find('\n', at + 1) - at).find(rest), std::string::npos) << ended.out;
  }
}

TEST(LaunchFlags, AFlagThatNamesAParadigmReplacesThatOfTheFile) {
  const UserFolders user;
  const auto file = user.write("c.yaml", "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: 'no'\n");
  EXPECT_EQ(user.shown({"--config_file", file}).at("strategy"), "fsdp");
  EXPECT_EQ(user.shown({"--config_file", file, "--use_deepspeed"}).at("strategy"), "zero2");
  EXPECT_EQ(user.shown({"--config_file", file, "--multi_gpu"}).at("strategy"), "auto");
}

TEST(LaunchFlags, WhatAsksForWhatIsNotThereIsNamedOnce) {
  const UserFolders user;
  const auto ended = user.call({"launch", "--cpu", "--num_processes", "1", "--dynamo_backend", "inductor", "--role",
                                "worker", "--enable_cpu_affinity", "true"});
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_NE(ended.error.find(
                "have no effect: dynamo_backend (there is no compiler for C++ modules), role (ranks have no roles)\n"),
            std::string::npos)
      << ended.error;
}

TEST(LaunchFlags, WhatIsRefusedShowsNoKey) {
  const UserFolders user;
  const auto ended = user.call({"launch", "--aws_secret_access_key", "hunter2", "true"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.error.find("MU481"), std::string::npos) << ended.error;
  EXPECT_EQ(ended.error.find("hunter2"), std::string::npos) << ended.error;
}

TEST(LaunchFlags, VariablesOfAccelerateAreFollowedOrRefusedByName) {
  const UserFolders user;
  const auto shown =
      user.shown({}, {"ACCELERATE_MIXED_PRECISION=bf16", "ACCELERATE_USE_CPU=true", "ACCELERATE_USE_DEEPSPEED=true",
                      "ACCELERATE_DEEPSPEED_ZERO_STAGE=1", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE=none"});
  EXPECT_EQ(shown.at("precision"), "bf16");
  EXPECT_EQ(shown.at("accelerator"), "cpu");
  EXPECT_EQ(shown.at("strategy"), "zero1");
  for (const auto* variable : {"ACCELERATE_USE_MEGATRON_LM=true", "ACCELERATE_MIXED_PRECISION=fp8",
                               "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE=cpu", "ACCELERATE_GRADIENT_CLIPPING=1.0"}) {
    const auto ended = user.call({"launch", "echo", "started"}, {variable});
    EXPECT_EQ(ended.code, 2) << variable;
    const std::string text(variable);
    EXPECT_NE(ended.error.find("MU481: variable " + text.substr(0, text.find('='))), std::string::npos) << ended.error;
    EXPECT_EQ(ended.out, "");
  }
}

TEST(LaunchFlags, VariablesAreJudgedAsTheNamesThatTheyStandFor) {
  const UserFolders user;
  const auto refused = [&](const std::string& variable, const std::string& id) {
    for (const auto* command : {"launch", "run"}) {
      const auto ended = user.call({command, "echo", "started"}, {variable});
      EXPECT_EQ(ended.code, 2) << variable;
      EXPECT_NE(ended.error.find(id + ": variable " + variable.substr(0, variable.find('=')) + " is "),
                std::string::npos)
          << command << " " << variable << ended.error;
      EXPECT_EQ(ended.out, "");
    }
  };
  for (const auto* variable :
       {"PARALLELISM_CONFIG_TP_SIZE=2", "PARALLELISM_CONFIG_CP_SIZE=4", "PARALLELISM_CONFIG_SP_SIZE=2",
        "FSDP_OFFLOAD_PARAMS=True", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=yes", "FSDP_BACKWARD_PREFETCH=NO_PREFETCH"})
    refused(variable, "MU197");
  for (const auto* variable :
       {"ACCELERATE_USE_TP=true", "ACCELERATE_USE_MEGATRON_LM=1", "ACCELERATE_DEEPSPEED_CONFIG_FILE=ds.json",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE=nvme"})
    refused(variable, "MU481");
  const auto named = user.call({"launch", "-q", "--cpu", "true"},
                               {"MEGATRON_LM_TP_DEGREE=2", "ACCELERATE_DYNAMO_BACKEND=INDUCTOR",
                                "FSDP_CPU_RAM_EFFICIENT_LOADING=true", "ACCELERATE_DEEPSPEED_ZERO3_INIT=true"});
  EXPECT_EQ(named.code, 0) << named.error;
  for (const auto* name : {"variable MEGATRON_LM_TP_DEGREE (", "variable ACCELERATE_DYNAMO_BACKEND (",
                           "variable FSDP_CPU_RAM_EFFICIENT_LOADING (each rank builds the whole model",
                           "variable ACCELERATE_DEEPSPEED_ZERO3_INIT (each rank"})
    EXPECT_NE(named.error.find(name), std::string::npos) << name << " is missing in\n" << named.error;
  // What asks for nothing, as Accelerate's launcher sets it.
  const auto idle = user.call(
      {"launch", "-q", "--cpu", "true"},
      {"PARALLELISM_CONFIG_TP_SIZE=1", "PARALLELISM_CONFIG_CP_BACKEND=torch", "FSDP_OFFLOAD_PARAMS=false",
       "ACCELERATE_DYNAMO_BACKEND=NO", "ACCELERATE_USE_MEGATRON_LM=No", "FSDP_CPU_RAM_EFFICIENT_LOADING=False",
       "ACCELERATE_GRADIENT_CLIPPING=none", "ACCELERATE_DYNAMO_MODE=default", "ACCELERATE_DEBUG_MODE=true",
       "ACCELERATE_DEEPSPEED_CONFIG_FILE=none"});
  EXPECT_EQ(idle.code, 0);
  EXPECT_EQ(idle.error, "");
}

TEST(LaunchFlags, DurationsAreReadAlike) {
  const UserFolders user;
  for (const auto* five : {"5", "5s", "5000ms", "0:00:05"}) {
    const auto ended = user.call(
        {"run", "--grace", five, "--timeout", five, "--join-timeout", five, "--no-prefix", rank_program(), "options"});
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_EQ(times(ended.out, "timeout=5s\n"), 1) << ended.out;
  }
}

TEST(LaunchFlags, WhatIsNotSupportedInAnyFormIsSaidToBe) {
  const UserFolders user;
  for (const auto& words : {Words{"--strategy", "fsdp", "--fsdp", "offload_policy=Block"},
                            Words{"--strategy", "fsdp", "--options", "fsdp.offload_policy=Block"}}) {
    auto call = words;
    call.insert(call.begin(), "run");
    call.emplace_back("true");
    const auto ended = user.call(call);
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU197"), std::string::npos) << ended.error;
    EXPECT_NE(ended.error.find("'Block', which is not supported"), std::string::npos) << ended.error;
  }
}

TEST(LaunchFlags, ATpuIsRefusedUnlessTheDeviceIsNamedToo) {
  const UserFolders user;
  EXPECT_NE(user.call({"launch", "--tpu", "true"}).error.find("MU481: flag --tpu"), std::string::npos);
  EXPECT_EQ(user.shown({"--tpu", "--accelerator", "cpu", "--num_processes", "2"}).at("accelerator"), "cpu");
  const auto file = user.write("c.yaml", "distributed_type: MULTI_NEURON\nnum_processes: 2\n");
  EXPECT_EQ(user.shown({"--config_file", file, "--accelerator", "cpu"}).at("devices"), "2");
}

TEST(LaunchFlags, TheHelpShowsTheGroupsOfTheFlagsBeforeIt) {
  const UserFolders user;
  const auto plain = user.call({"launch", "--help"}), sharded = user.call({"launch", "--use_fsdp", "--help"});
  EXPECT_EQ(plain.out.find("--fsdp_min_num_params"), std::string::npos) << plain.out;
  EXPECT_NE(sharded.out.find("--fsdp_min_num_params"), std::string::npos) << sharded.out;
  EXPECT_NE(plain.out.find("--num_processes"), std::string::npos);
}

TEST(LaunchFlags, AnUnknownOneIsNamedWithTheNearest) {
  const UserFolders user;
  const auto ended = user.call({"launch", "--num_proceses", "2", "true"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.error.find("MU006: muster launch knows no flag '--num_proceses'"), std::string::npos) << ended.error;
  EXPECT_NE(ended.error.find("--num_processes"), std::string::npos) << ended.error;
  EXPECT_NE(user.call({"run", "--num-processes=2", "true"}).error.find("`muster launch` takes it as it is"),
            std::string::npos);
}

TEST(LaunchFlags, TheFileIsChosenInOrderAndNamed) {
  const UserFolders user;
  const auto reads = [&](const std::vector<std::string>& flags, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> words{"launch"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back("true");
    return user.call(words, environment).error;
  };
  EXPECT_NE(reads({}).find("there is no configuration file"), std::string::npos);
  write_file(user.accelerates(), "distributed_type: 'NO'\n");
  EXPECT_EQ(reads({}), "muster: reads " + user.accelerates() + ", a file of `accelerate config`\n");
  write_file(user.ours(), "run: {num_processes: 1}\n");
  EXPECT_EQ(reads({}), "muster: reads " + user.ours() + "\n");
  const auto named = user.write("named.yaml", "run: {num_processes: 1}\n");
  EXPECT_EQ(reads({}, {"MUSTER_CONFIG=" + named}), "muster: reads " + named + "\n");
  EXPECT_EQ(reads({"--config_file", user.ours()}, {"MUSTER_CONFIG=" + named}), "muster: reads " + user.ours() + "\n");
  // `muster run` reads none that it is not given.
  EXPECT_EQ(user.call({"run", "true"}).error, "");
}

TEST(LaunchFlags, APortThatIsTakenIsReplacedOnOneMachine) {
  const UserFolders user;
  const cluster::ListeningSocket taken(0, "127.0.0.1");
  const auto ended = user.call({"launch", "-q", "--cpu", "--num_processes", "2", "--main_process_port",
                                std::to_string(taken.port()), rank_program(), "options"});
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_NE(ended.error.find("port " + std::to_string(taken.port()) + " is taken"), std::string::npos) << ended.error;
}

TEST(LaunchFlags, ExcludeEachOtherAsThere) {
  const UserFolders user;
  const Words wrong[] = {{"--cpu", "--use_fsdp"},      {"--multi_gpu", "--use_deepspeed"},
                         {"--use_parallelism_config"}, {"--fsdp_min_num_params", "1000"},
                         {"--zero_stage", "1"},        {"--multi_gpu", "--num_processes", "1"}};
  for (auto words : wrong) {
    words.insert(words.begin(), "launch");
    words.emplace_back("true");
    const auto ended = user.call(words);
    EXPECT_EQ(ended.code, 2);
    EXPECT_NE(ended.error.find("MU483"), std::string::npos) << words[1] << ended.error;
  }
}

}  // namespace
}  // namespace muster::launcher::testing
