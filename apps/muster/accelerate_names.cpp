#include "accelerate_names.h"

#include <algorithm>
#include <deque>

#include "base/letter_case.h"

namespace muster::cli {
namespace {
namespace tables {

using enum AccelerateGroup;

constexpr std::string_view kWithTpu = "it belongs to --tpu, which is refused";
constexpr std::string_view kWithMegatron = "it belongs to --use_megatron_lm, which is refused";
constexpr std::string_view kWithFp8 = "it belongs to --mixed_precision fp8, which is refused";
constexpr std::string_view kWithSageMaker = "it belongs to Amazon SageMaker; see `muster submit sagemaker`";
constexpr std::string_view kWholeModel = "each rank builds the whole model in its memory";
constexpr std::string_view kEachNode = "call `muster launch` on each node, with --machine_rank and --main_process_ip";
constexpr std::string_view kNoTpu =
    "LibTorch has no backend for TPUs; take a CPU or GPU, or, if the program loads one, name it: --accelerator tpu";
constexpr std::string_view kNoMegatron = "the layers of a model are not split over ranks; use --use_fsdp instead";
constexpr std::string_view kAwsKeys =
    "`muster submit sagemaker` leaves them to the AWS command line; no key is kept by Muster";

constexpr AccelerateName kGeneral[] = {
    {"config_file", general, Follow::in_code, "the file to read; without it ours, else Accelerate's"},
    {"quiet", general, Follow::in_code, "do not say which file is read", "", true},
    {"module", general, Follow::refused, "a program is executed as it is; drop --module", "false", true},
    {"no_python", general, Follow::ignored, "a program is executed as it is", "", true},
    {"debug", general, Follow::ignored, "ranks always check what they exchange", "", true},
    {"cpu", hardware, Follow::in_code, "train on the CPU: --accelerator cpu", "", true},
    {"multi_gpu", hardware, Follow::in_code, "several ranks", "", true},
    {"tpu", hardware, Follow::refused, kNoTpu, "false", true},
    {"mixed_precision", resources, Follow::in_code, "no, fp16 or bf16: --precision"},
    {"num_processes", resources, Follow::in_code, "ranks on all machines together: --devices on each"},
    {"num_machines", resources, Follow::option, "nodes"},
    {"num_cpu_threads_per_process", resources, Follow::option, "threads"},
    {"enable_cpu_affinity", resources, Follow::ignored, "ranks keep near their GPUs unless --no-affinity is given", "",
     true},
    {"dynamo_backend", resources, Follow::warned, kNoCompiler, "no"},
    {"dynamo_mode", resources, Follow::ignored, kNoCompiler},
    {"dynamo_use_fullgraph", resources, Follow::ignored, kNoCompiler, "", true},
    {"dynamo_use_dynamic", resources, Follow::ignored, kNoCompiler, "", true},
    {"dynamo_use_regional_compilation", resources, Follow::ignored, kNoCompiler, "", true},
    {"use_deepspeed", paradigm, Follow::in_code, "--strategy zero1, zero2 or zero3, by --zero_stage", "", true},
    {"use_fsdp", paradigm, Follow::in_code, "--strategy fsdp, with the flags of FSDP", "", true},
    {"use_parallelism_config", paradigm, Follow::in_code, "follow the flags of ParallelismConfig", "", true},
    {"use_megatron_lm", paradigm, Follow::refused, kNoMegatron, "false", true},
};

constexpr AccelerateName kDistributed[] = {
    {"gpu_ids", distributed, Follow::in_code, "accelerators of this machine, such as 0,2: --devices 0,2"},
    {"same_network", distributed, Follow::ignored, "ranks always rendezvous at --main_process_ip", "", true},
    {"machine_rank", distributed, Follow::option, "node_rank"},
    {"main_process_ip", distributed, Follow::option, "main_address"},
    {"main_process_port", distributed, Follow::option, "main_port"},
    {"tee", distributed, Follow::ignored, "output is always shown, and written into --log_dir too"},
    {"log_dir", distributed, Follow::option, "log_dir"},
    {"role", distributed, Follow::warned, "ranks have no roles", "default"},
    {"rdzv_backend", distributed, Follow::ignored, "ranks always rendezvous at --main_process_ip"},
    {"rdzv_conf", distributed, Follow::warned, "--timeout bounds the rendezvous"},
    {"max_restarts", distributed, Follow::option, "max_restarts", "0"},
    {"monitor_interval", distributed, Follow::ignored, "an end is noticed at once"},
    {"mpirun_hostfile", mpi, Follow::refused, "start the program by mpirun itself: mpirun --hostfile FILE PROGRAM"},
    {"tpu_cluster", tpu, Follow::refused, kNoTpu, "false", true},
    {"tpu_use_sudo", tpu, Follow::ignored, kWithTpu, "", true},
    {"vm", tpu, Follow::ignored, kWithTpu},
    {"env", tpu, Follow::ignored, kWithTpu},
    {"main_training_function", tpu, Follow::ignored, "main() is executed"},
    {"downcast_bf16", tpu, Follow::ignored, kWithTpu, "", true},
    {"aws_access_key_id", aws, Follow::refused, kAwsKeys},
    {"aws_secret_access_key", aws, Follow::refused, kAwsKeys},
};

constexpr AccelerateName kSharding[] = {
    {"deepspeed_config_file", deepspeed, Follow::in_code,
     "its stage, accumulation and precision are followed; every other key has no effect or is refused"},
    {"zero_stage", deepspeed, Follow::in_code, "0: --strategy ddp; 1, 2, 3: zero1, zero2, zero3"},
    {"offload_optimizer_device", deepspeed, Follow::refused, kNoOffload, "none"},
    {"offload_param_device", deepspeed, Follow::refused, kNoOffload, "none"},
    {"offload_optimizer_nvme_path", deepspeed, Follow::ignored, "it belongs to offloading, which is refused"},
    {"offload_param_nvme_path", deepspeed, Follow::ignored, "it belongs to offloading, which is refused"},
    {"gradient_accumulation_steps", deepspeed, Follow::option, "gradient_accumulation.num_steps", "auto"},
    {"gradient_clipping", deepspeed, Follow::refused,
     "the program clips, by clip_grad_norm_(); a Trainer does by --trainer-gradient-clip-val", "none auto 0 0.0"},
    {"zero3_init_flag", deepspeed, Follow::warned, kWholeModel, "false"},
    {"zero3_save_16bit_model", deepspeed, Follow::ignored, "save_model() always writes full weights"},
    {"deepspeed_hostfile", deepspeed, Follow::refused, kEachNode},
    {"deepspeed_exclusion_filter", deepspeed, Follow::refused, kEachNode},
    {"deepspeed_inclusion_filter", deepspeed, Follow::refused, kEachNode},
    {"deepspeed_multinode_launcher", deepspeed, Follow::refused, kEachNode, "standard"},
    {"deepspeed_moe_layer_cls_names", deepspeed, Follow::refused, "there is no training of mixtures of experts"},
    {"fsdp_version", fsdp, Follow::sharding, "fsdp_version"},
    {"fsdp_offload_params", fsdp, Follow::sharding, "offload_params"},
    {"fsdp_min_num_params", fsdp, Follow::sharding, "min_num_params"},
    {"fsdp_sharding_strategy", fsdp, Follow::sharding, "sharding_strategy"},
    {"fsdp_reshard_after_forward", fsdp, Follow::sharding, "reshard_after_forward"},
    {"fsdp_auto_wrap_policy", fsdp, Follow::sharding, "auto_wrap_policy"},
    {"fsdp_transformer_layer_cls_to_wrap", fsdp, Follow::sharding, "transformer_cls_names_to_wrap"},
    {"fsdp_backward_prefetch", fsdp, Follow::sharding, "backward_prefetch"},
    {"fsdp_state_dict_type", fsdp, Follow::sharding, "state_dict_type"},
    {"fsdp_forward_prefetch", fsdp, Follow::sharding, "forward_prefetch"},
    {"fsdp_use_orig_params", fsdp, Follow::sharding, "use_orig_params"},
    {"fsdp_cpu_ram_efficient_loading", fsdp, Follow::warned, kWholeModel, "false"},
    {"fsdp_sync_module_states", fsdp, Follow::sharding, "sync_module_states"},
    {"fsdp_activation_checkpointing", fsdp, Follow::sharding, "activation_checkpointing"},
    {"fsdp_activation_checkpointing_offload", fsdp, Follow::sharding, "activation_checkpointing_offload"},
    {"parallelism_config_dp_replicate_size", parallelism, Follow::sharding, "dp_replicate_size"},
    {"parallelism_config_dp_shard_size", parallelism, Follow::sharding, "dp_shard_size"},
    {"parallelism_config_tp_size", parallelism, Follow::sharding, "tp_size"},
    {"parallelism_config_cp_size", parallelism, Follow::sharding, "cp_size"},
    {"parallelism_config_cp_backend", parallelism, Follow::ignored, "it belongs to cp_size, which is refused"},
    {"parallelism_config_cp_comm_strategy", parallelism, Follow::ignored, "it belongs to cp_size, which is refused"},
    {"parallelism_config_sp_size", parallelism, Follow::sharding, "sp_size"},
    {"parallelism_config_sp_backend", parallelism, Follow::ignored, "it belongs to sp_size, which is refused"},
    {"parallelism_config_sp_seq_length", parallelism, Follow::ignored, "it belongs to sp_size, which is refused"},
    {"parallelism_config_sp_seq_length_is_variable", parallelism, Follow::ignored,
     "it belongs to sp_size, which is refused"},
    {"parallelism_config_sp_attn_implementation", parallelism, Follow::ignored,
     "it belongs to sp_size, which is refused"},
};

constexpr std::string_view kMegatron[] = {"tp_degree",
                                          "use_custom_fsdp",
                                          "no_load_optim",
                                          "eod_mask_loss",
                                          "overlap_cpu_optimizer_d2h_h2d",
                                          "no_save_optim",
                                          "optimizer_cpu_offload",
                                          "use_precision_aware_optimizer",
                                          "decoder_last_pipeline_num_layers",
                                          "pp_degree",
                                          "num_micro_batches",
                                          "sequence_parallelism",
                                          "recompute_activations",
                                          "use_distributed_optimizer",
                                          "gradient_clipping",
                                          "recompute_granularity",
                                          "recompute_method",
                                          "recompute_num_layers",
                                          "attention_backend",
                                          "expert_model_parallel_size",
                                          "context_parallel_size",
                                          "attention_dropout",
                                          "hidden_dropout",
                                          "attention_softmax_in_fp32",
                                          "expert_tensor_parallel_size",
                                          "calculate_per_token_loss",
                                          "use_rotary_position_embeddings"};
constexpr std::string_view kFp8[] = {"backend",
                                     "use_autocast_during_eval",
                                     "margin",
                                     "interval",
                                     "format",
                                     "amax_history_len",
                                     "amax_compute_algo",
                                     "override_linear_precision",
                                     "opt_level",
                                     "enable_fsdp_float8_all_gather",
                                     "pad_inner_dim"};

constexpr AccelerateName kOfFile[] = {
    {"compute_environment", file, Follow::in_code, "LOCAL_MACHINE; AMAZON_SAGEMAKER is refused"},
    {"distributed_type", file, Follow::in_code, "NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED; others are refused"},
    {"use_cpu", file, Follow::in_code, "as --cpu"},
    {"fp16", file, Follow::in_code, "as mixed_precision: fp16"},
    {"fsdp_ignored_modules", file, Follow::sharding, "ignored_modules"},
    {"fsdp_backward_prefetch_policy", file, Follow::sharding, "backward_prefetch"},
    {"mpirun_ccl", file, Follow::ignored, "it belongs to mpirun, which is refused"},
    {"fp8_amax_history_length", file, Follow::ignored, kWithFp8},
    {"fp8_amax_compute_algorithm", file, Follow::ignored, kWithFp8},
    {"fp8_optimization_level", file, Follow::ignored, kWithFp8},
    {"tpu_use_cluster", file, Follow::refused, kNoTpu, "false"},
    {"tpu_name", file, Follow::ignored, kWithTpu},
    {"tpu_zone", file, Follow::ignored, kWithTpu},
    {"tpu_vm", file, Follow::ignored, kWithTpu},
    {"tpu_env", file, Follow::ignored, kWithTpu},
    {"command_file", file, Follow::ignored, kWithTpu},
    {"commands", file, Follow::ignored, kWithTpu},
};
constexpr std::string_view kOfSageMaker[] = {"ec2_instance_type",
                                             "iam_role_name",
                                             "image_uri",
                                             "profile",
                                             "region",
                                             "base_job_name",
                                             "py_version",
                                             "pytorch_version",
                                             "transformers_version",
                                             "additional_args",
                                             "sagemaker_inputs_file",
                                             "sagemaker_metrics_file"};

}  // namespace tables

/// A copy of the text, such as "megatron_lm_tp_degree", that lives as long as the program.
std::string_view kept(const std::string& name) {
  static std::deque<std::string> names;
  return names.emplace_back(name);
}

}  // namespace

std::span<const AccelerateName> accelerate_names() {
  using namespace tables;
  static const std::vector<AccelerateName> all = [] {
    std::vector<AccelerateName> names;
    for (const auto& some : {std::span<const AccelerateName>(kGeneral), std::span<const AccelerateName>(kDistributed),
                             std::span<const AccelerateName>(kSharding), std::span<const AccelerateName>(kOfFile)})
      names.insert(names.end(), some.begin(), some.end());
    for (const auto word : kMegatron)
      names.push_back({kept("megatron_lm_" + std::string(word)), megatron, Follow::warned, kWithMegatron});
    for (const auto word : kFp8)
      names.push_back({.name = kept("fp8_" + std::string(word)),
                       .group = fp8,
                       .follow = Follow::warned,
                       .text = kWithFp8,
                       .is_switch = word == "use_autocast_during_eval"});
    for (const auto word : kOfSageMaker) names.push_back({word, file, Follow::ignored, kWithSageMaker});
    return names;
  }();
  return all;
}

const AccelerateName* find_accelerate_name(std::string_view name) {
  const auto names = accelerate_names();
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& one) { return one.name == name; });
  return found == names.end() ? nullptr : &*found;
}

namespace {

/// A description of how a name is followed.
std::string followed_as(const AccelerateName& one) {
  const std::string text(one.text);
  switch (one.follow) {
    case Follow::option: return "as the option " + text;
    case Follow::sharding: return "as the field of FSDP " + text;
    case Follow::ignored:
    case Follow::warned: return "no effect: " + text;
    case Follow::refused: return "refused: " + text;
    case Follow::in_code: break;
  }
  return text;
}

}  // namespace

std::string accelerate_markdown() {
  std::string result = "| name | flag | followed as |\n|---|---|---|\n";
  for (const auto& one : accelerate_names())
    result += "| `" + std::string(one.name) + "` | " +
              (one.group == AccelerateGroup::file ? "–" : "`--" + std::string(one.name) + "`") + " | " +
              followed_as(one) + " |\n";
  return result;
}

std::vector<options::Description> accelerate_flags(AccelerateGroup group) {
  std::vector<options::Description> flags;
  for (const auto& one : accelerate_names()) {
    if (one.group != group || group == AccelerateGroup::file) continue;
    options::Description flag{.name = std::string(one.name), .is_switch = one.is_switch};
    flag.help = followed_as(one);
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::string_view title_of(AccelerateGroup group) {
  using enum AccelerateGroup;
  switch (group) {
    case general: return "Accelerate: general";
    case hardware: return "Accelerate: hardware";
    case resources: return "Accelerate: resources";
    case paradigm: return "Accelerate: paradigm";
    case distributed: return "Accelerate: distributed training";
    case mpi: return "Accelerate: MPI";
    case tpu: return "Accelerate: TPU";
    case aws: return "Accelerate: AWS";
    case deepspeed: return "Accelerate: DeepSpeed";
    case fsdp: return "Accelerate: FSDP";
    case megatron: return "Accelerate: Megatron-LM";
    case fp8: return "Accelerate: FP8";
    case parallelism: return "Accelerate: ParallelismConfig";
    case file: break;
  }
  return "";
}

std::string variable_of_accelerate(const AccelerateName& one) {
  using enum AccelerateGroup;
  const auto capitals = upper_case(std::string(one.name));
  if (one.name == "zero3_init_flag") return "ACCELERATE_DEEPSPEED_ZERO3_INIT";
  if (one.name == "deepspeed_moe_layer_cls_names" || one.name == "deepspeed_config_file")
    return "ACCELERATE_" + capitals;
  if (one.name == "fsdp_transformer_layer_cls_to_wrap") return "FSDP_TRANSFORMER_CLS_TO_WRAP";
  if (one.name == "mixed_precision" || one.name == "gradient_clipping" || one.name.starts_with("dynamo_"))
    return "ACCELERATE_" + capitals;
  const bool shards = one.name.starts_with("zero") || one.name.starts_with("offload_");
  switch (one.group) {
    case paradigm:
    case fp8: return "ACCELERATE_" + capitals;
    case deepspeed: return shards ? "ACCELERATE_DEEPSPEED_" + capitals : "";
    case fsdp:
    case megatron:
    case parallelism: return capitals;
    default: return "";
  }
}

namespace {

/// A section of the file, and the prefix of its keys outside of it.
constexpr std::pair<std::string_view, std::string_view> kSections[] = {{"deepspeed_config", ""},
                                                                       {"dynamo_config", "dynamo_"},
                                                                       {"fp8_config", "fp8_"},
                                                                       {"fsdp_config", "fsdp_"},
                                                                       {"megatron_lm_config", "megatron_lm_"},
                                                                       {"mpirun_config", ""},
                                                                       {"parallelism_config", "parallelism_config_"}};

std::string_view section_of(const AccelerateName& one) {
  if (one.group == AccelerateGroup::deepspeed) return "deepspeed_config";
  if (one.name.starts_with("mpirun_")) return "mpirun_config";
  for (const auto& [section, prefix] : kSections)
    if (!prefix.empty() && one.name.starts_with(prefix)) return section;
  return "";
}

}  // namespace

std::vector<std::string> accelerate_sections() {
  std::vector<std::string> names;
  for (const auto& [name, prefix] : kSections) names.emplace_back(name);
  return names;
}

std::vector<std::string> accelerate_keys_of(std::string_view section) {
  std::vector<std::string> keys;
  for (const auto& one : accelerate_names())
    if (section_of(one) == section) keys.emplace_back(one.name);
  if (section.empty())
    for (auto& name : accelerate_sections()) keys.push_back(std::move(name));
  return keys;
}

std::string accelerate_name_of_key(const std::string& key) {
  const auto dot = key.find('.');
  if (dot == std::string::npos) return key;
  const auto section = key.substr(0, dot), rest = key.substr(dot + 1);
  if (section == "additional_args") return section;
  for (const auto& [name, prefix] : kSections)
    if (name == section) return rest.starts_with(prefix) ? rest : std::string(prefix) + rest;
  return key;
}

}  // namespace muster::cli
