#include "deepspeed_names.h"

#include <algorithm>

#include "accelerate_names.h"

namespace muster::cli {
namespace {

using enum Follow;

constexpr std::string_view kByLoaders = "the program's data loaders say it";
constexpr std::string_view kOwnEngine = "units are gathered and reduced as their sizes say";
constexpr std::string_view kOwnOrder = "gradients are reduced in an order of their own";
constexpr std::string_view kOfOffload = "it belongs to offloading, which is refused";
constexpr std::string_view kNoQuantization = "parameters and gradients are exchanged in their own dtype; take it out";
constexpr std::string_view kNoActivationCheckpointing =
    "activations are kept for backward; train on smaller batches and accumulate gradients";
constexpr std::string_view kOwnScale =
    "the loss scale follows the options of grad_scaler: write --grad-scaler-init-scale and the like";
constexpr std::string_view kOtherTraining = "it trains another model, which only the program can make; take it out";
constexpr std::string_view kNoModelParallel = "the layers of a model are not split over ranks; take it out";
constexpr std::string_view kNoExperts = "there is no training of mixtures of experts; take it out";
constexpr std::string_view kNoMonitor = "the program chooses its trackers";
constexpr std::string_view kNoProfiler = "`muster run` measures nothing; see the page `look_inside`";
constexpr std::string_view kOwnFiles = "save_state() writes and reads checkpoints of its own";
constexpr std::string_view kWithSwitch = "it belongs to the switch of its section";

constexpr DeepspeedKey kOfZero[] = {
    {"zero_optimization", refused, "write a section that holds stage", "false"},
    {"zero_optimization.stage", in_code, "zero_stage"},
    {"zero_optimization.offload_optimizer.device", in_code, "offload_optimizer_device"},
    {"zero_optimization.offload_param.device", in_code, "offload_param_device"},
    {"zero_optimization.offload_optimizer.", ignored, kOfOffload},
    {"zero_optimization.offload_param.", ignored, kOfOffload},
    {"zero_optimization.cpu_offload", refused, kNoOffload, "false"},
    {"zero_optimization.cpu_offload_param", refused, kNoOffload, "false"},
    {"zero_optimization.cpu_offload_params", refused, kNoOffload, "false"},
    {"zero_optimization.cpu_offload_use_pin_memory", ignored, kOfOffload},
    {"zero_optimization.zenflow.", refused, kNoOffload},
    {"zero_optimization.zero_hpz_partition_size", refused, "write --strategy hsdp instead", "1"},
    {"zero_optimization.mics_shard_size", refused, "write --fsdp-shard-group-size instead", "-1"},
    {"zero_optimization.mics_hierarchical_params_gather", warned, kOwnEngine, "false"},
    {"zero_optimization.zero_quantized_weights", refused, kNoQuantization, "false"},
    {"zero_optimization.zero_quantized_nontrainable_weights", refused, kNoQuantization, "false"},
    {"zero_optimization.zero_quantized_gradients", refused, kNoQuantization, "false"},
    {"zero_optimization.zeropp_loco_param.", refused, kNoQuantization},
    {"zero_optimization.stage3_max_live_parameters", warned, "--fsdp-limit-gathered-mb bounds what is gathered", "1e9"},
    {"zero_optimization.stage3_max_reuse_distance", warned, kOwnEngine, "1e9"},
    {"zero_optimization.stage3_prefetch_bucket_size", warned, kOwnEngine, "5e7"},
    {"zero_optimization.stage3_param_persistence_threshold", warned, kOwnEngine, "1e5"},
    {"zero_optimization.stage3_model_persistence_threshold", warned, kOwnEngine, "9223372036854775807"},
    {"zero_optimization.stage3_module_granularity_threshold", warned, "--fsdp-unit-min-elements says it", "0"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", warned, kOwnEngine, "false"},
    {"zero_optimization.stage3_allgather_sequential", warned, kOwnEngine, "false"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", ignored, "save_model() always writes full weights"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", ignored, "save_model() always writes full weights"},
    {"zero_optimization.contiguous_gradients", warned, kOwnEngine, "true"},
    {"zero_optimization.reduce_scatter", warned, kOwnEngine, "true"},
    {"zero_optimization.reduce_bucket_size", warned, kOwnEngine, "5e8"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", warned, kOwnEngine, "true"},
    {"zero_optimization.allgather_partitions", warned, kOwnEngine, "true"},
    {"zero_optimization.allgather_bucket_size", warned, kOwnEngine, "5e8"},
    {"zero_optimization.overlap_comm", warned, "communication always overlaps", "true"},
    {"zero_optimization.load_from_fp32_weights", warned, kOwnFiles, "true"},
    {"zero_optimization.elastic_checkpoint", warned, kOwnFiles, "false true"},
    {"zero_optimization.pipeline_loading_checkpoint", warned, kOwnFiles, "false"},
    {"zero_optimization.sub_group_size", warned, kOwnEngine, "1e9"},
    {"zero_optimization.ignore_unused_parameters", warned, "parameters without a gradient are always allowed", "true"},
    {"zero_optimization.legacy_stage1", warned, kOwnEngine, "false"},
    {"zero_optimization.round_robin_gradients", warned, kOwnEngine, "false"},
    {"zero_optimization.memory_efficient_linear", warned, kOwnEngine, "true"},
    {"zero_optimization.override_module_apply", warned, kOwnEngine, "true"},
    {"zero_optimization.log_trace_cache_warnings", warned, kOwnEngine, "false"},
    {"zero_optimization.enable_sanity_checks", ignored, "ranks always check what they exchange"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", warned, kOwnEngine, "false"},
    {"zero_optimization.leaf_module.", warned, "--fsdp-unit-classes and --fsdp-unit-names choose the units"},
};

constexpr DeepspeedKey kOfTraining[] = {
    {"train_batch_size", warned, kByLoaders},
    {"train_micro_batch_size_per_gpu", warned, kByLoaders},
    {"dataloader_drop_last", warned, kByLoaders, "false"},
    {"gradient_accumulation_steps", in_code, "gradient_accumulation_steps"},
    {"managed_gradient_accumulation", warned, "the program says when a window ends", "true"},
    {"gradient_clipping", in_code, "gradient_clipping"},
    {"bf16.enabled", in_code, "mixed_precision: bf16"},
    {"bfloat16.enabled", in_code, "mixed_precision: bf16"},
    {"fp16.enabled", in_code, "mixed_precision: fp16"},
    {"bf16.check_grad_overflow", warned, "bfloat16 needs no loss scale", "true false"},
    {"bf16.immediate_grad_update", warned, kOwnEngine, "false"},
    {"bf16.bf16_master_weights_and_grads", refused, "write --precision bf16-true instead", "false"},
    {"bf16.bf16_optimizer_states", refused, "write --precision bf16-true instead", "false"},
    {"bfloat16.immediate_grad_update", warned, kOwnEngine, "false"},
    {"fp16.auto_cast", warned, "autocast casts inputs where kernels need it", "false"},
    {"fp16.loss_scale", warned, kOwnScale, "0"},
    {"fp16.initial_scale_power", warned, kOwnScale, "16"},
    {"fp16.loss_scale_window", warned, kOwnScale, "1000"},
    {"fp16.hysteresis", warned, kOwnScale, "2"},
    {"fp16.consecutive_hysteresis", warned, kOwnScale, "false"},
    {"fp16.min_loss_scale", warned, kOwnScale, "1"},
    {"fp16.fp16_master_weights_and_grads", refused, "write --precision 16-true instead", "false"},
    {"amp.enabled", refused, "write --precision 16-mixed instead", "false"},
    {"amp.", ignored, kWithSwitch},
    {"torch_autocast.enabled", refused, "write --precision bf16-mixed or 16-mixed instead", "false"},
    {"torch_autocast.", ignored, kWithSwitch},
    {"communication_data_type", warned, "--fsdp-reduce-dtype says it", "none"},
    {"seq_parallel_communication_data_type", ignored, "it belongs to sequence_parallel_size, which is refused"},
    {"prescale_gradients", warned, kOwnOrder, "false"},
    {"gradient_predivide_factor", warned, "--fsdp-predivide-factor says it", "1"},
    {"gradient_allreduce_op", refused, "gradients are averaged; multiply the learning rate instead", "mean"},
    {"sparse_gradients", warned, kOwnEngine, "false"},
    {"disable_allgather", warned, kOwnEngine, "false"},
    {"data_types.grad_accum_dtype", refused, "gradients add up in the dtype of their parameters; take it out",
     "none fp32"},
    {"data_types.param_dtype", refused, "write --fsdp-param-dtype instead", "none"},
    {"data_types.buffer_dtype", refused, "write --fsdp-buffer-dtype instead", "none"},
    {"optimizer.", refused, "the program makes its optimizer; take the section out"},
    {"scheduler.", refused, "the program makes its scheduler; take the section out"},
    {"zero_allow_untested_optimizer", ignored, "every optimizer may be sharded"},
    {"zero_force_ds_cpu_optimizer", ignored, kOfOffload},
    {"aio.", ignored, kOfOffload},
};

constexpr DeepspeedKey kOfModels[] = {
    {"activation_checkpointing.partition_activations", refused, kNoActivationCheckpointing, "false"},
    {"activation_checkpointing.cpu_checkpointing", refused, kNoActivationCheckpointing, "false"},
    {"activation_checkpointing.contiguous_memory_optimization", refused, kNoActivationCheckpointing, "false"},
    {"activation_checkpointing.number_checkpoints", refused, kNoActivationCheckpointing, "none"},
    {"activation_checkpointing.synchronize_checkpoint_boundary", refused, kNoActivationCheckpointing, "false"},
    {"activation_checkpointing.profile", refused, kNoActivationCheckpointing, "false"},
    {"moe.", refused, kNoExperts},
    {"moe", refused, kNoExperts, "false"},
    {"expert_parallel.", refused, kNoExperts},
    {"use_data_before_expert_parallelism", refused, kNoExperts, "false"},
    {"tensor_parallel.autotp_size", refused, kNoModelParallel, "0 1"},
    {"tensor_parallel.tp_size", refused, kNoModelParallel, "1"},
    {"tensor_parallel.tp.tp_size", refused, kNoModelParallel, "1"},
    {"tensor_parallel.tensor_parallel.tp_size", refused, kNoModelParallel, "1"},
    {"tensor_parallel.", ignored, "it belongs to the size of tensor parallelism, which is refused"},
    {"sequence_parallel_size", refused, kNoModelParallel, "1"},
    {"pipeline.", refused, kNoModelParallel},
    {"progressive_layer_drop.enabled", refused, kOtherTraining, "false"},
    {"progressive_layer_drop.", ignored, kWithSwitch},
    {"curriculum_learning.enabled", refused, kByLoaders, "false"},
    {"curriculum_learning.", ignored, kWithSwitch},
    {"data_efficiency.enabled", refused, kByLoaders, "false"},
    {"data_efficiency.", ignored, kWithSwitch},
    {"hybrid_engine.enabled", refused, kOtherTraining, "false"},
    {"hybrid_engine.", ignored, kWithSwitch},
    {"sparse_attention.", refused, kOtherTraining},
    {"compression_training.", refused, kOtherTraining},
    {"quantize_training.", refused, kOtherTraining},
    {"weight_quantization.", refused, kOtherTraining},
    {"elasticity.enabled", refused, "write --nodes MIN:MAX instead", "false"},
    {"elasticity.", ignored, kWithSwitch},
    {"compile.deepcompile", warned, kNoCompiler, "false"},
    {"compile.", ignored, kNoCompiler},
    {"graph_harvesting", warned, kNoCompiler, "false"},
    {"vocabulary_size", ignored, "nothing here needs it"},
};

constexpr DeepspeedKey kOfOutput[] = {
    {"steps_per_print", ignored, "the program prints"},
    {"log_level", ignored, "MUSTER_LOG says it"},
    {"dump_state", warned, kNoProfiler, "false"},
    {"wall_clock_breakdown", warned, kNoProfiler, "false"},
    {"memory_breakdown", warned, kNoProfiler, "false"},
    {"timers.", warned, kNoProfiler},
    {"comms_logger.enabled", warned, kNoProfiler, "false"},
    {"comms_logger.", ignored, kWithSwitch},
    {"flops_profiler.enabled", warned, kNoProfiler, "false"},
    {"flops_profiler.", ignored, kWithSwitch},
    {"eigenvalue.enabled", warned, kNoProfiler, "false"},
    {"eigenvalue.", ignored, kWithSwitch},
    {"autotuning.enabled", warned, "nothing is tuned", "false"},
    {"autotuning.", ignored, kWithSwitch},
    {"tensorboard.enabled", warned, kNoMonitor, "false"},
    {"tensorboard.", ignored, kWithSwitch},
    {"wandb.enabled", warned, kNoMonitor, "false"},
    {"wandb.", ignored, kWithSwitch},
    {"comet.enabled", warned, kNoMonitor, "false"},
    {"comet.", ignored, kWithSwitch},
    {"csv_monitor.enabled", warned, kNoMonitor, "false"},
    {"csv_monitor.", ignored, kWithSwitch},
    {"nebula.enabled", warned, kOwnFiles, "false"},
    {"nebula.", ignored, kWithSwitch},
    {"datastates_ckpt.", warned, kOwnFiles},
    {"checkpoint.tag_validation", ignored, "checkpoints are always checked"},
    {"checkpoint.", warned, kOwnFiles, "false"},
};

/// The description of a key in the reference.
std::string followed_as(const DeepspeedKey& key) {
  const std::string text(key.text), unless = key.accepted.empty() ? "" : " unless " + std::string(key.accepted);
  switch (key.follow) {
    case in_code: return "as Accelerate's " + text;
    case ignored: return "no effect: " + text;
    case warned: return "no effect" + unless + ", which a line says: " + text;
    default: return "refused" + unless + ": " + text;
  }
}

}  // namespace

std::span<const DeepspeedKey> deepspeed_keys() {
  static const std::vector<DeepspeedKey> all = [] {
    std::vector<DeepspeedKey> keys(std::begin(kOfZero), std::end(kOfZero));
    for (const auto& some : {std::span<const DeepspeedKey>(kOfTraining), std::span<const DeepspeedKey>(kOfModels),
                             std::span<const DeepspeedKey>(kOfOutput)})
      keys.insert(keys.end(), some.begin(), some.end());
    return keys;
  }();
  return all;
}

const DeepspeedKey* find_deepspeed_key(std::string_view name) {
  const DeepspeedKey* section = nullptr;
  for (const auto& key : deepspeed_keys()) {
    if (key.name == name) return &key;
    if (key.name.ends_with('.') && name.starts_with(key.name)) section = &key;
  }
  return section;
}

std::vector<std::string> deepspeed_keys_of(std::string_view section) {
  const auto begin = section.empty() ? std::string() : std::string(section) + ".";
  std::vector<std::string> names;
  for (const auto& key : deepspeed_keys()) {
    if (!key.name.starts_with(begin) || key.name.size() == begin.size()) continue;
    const auto rest = key.name.substr(begin.size());
    std::string name(rest.substr(0, rest.find('.')));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

std::string deepspeed_markdown() {
  std::string result = "| key | followed as |\n|---|---|\n";
  for (const auto& key : deepspeed_keys())
    result += "| `" + std::string(key.name) + (key.name.ends_with('.') ? "*" : "") + "` | " + followed_as(key) + " |\n";
  return result;
}

}  // namespace muster::cli
