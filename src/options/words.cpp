#include "options/words.h"

#include <ranges>
#include <sstream>

#include "base/text.h"

namespace muster::options {
namespace {
/// Words with one meaning share a row, separated by blanks.
namespace tables {

using enum Follow;

// Names of strategies

constexpr std::string_view kUseFsdp =
    "parameters and states stay on the device; use 'fsdp' over more ranks, or smaller batches";
constexpr std::string_view kNoLayerSplit =
    "the layers of a model are not split over ranks; 'fsdp' reduces the memory they need";
constexpr std::string_view kNoXla = "LibTorch has no XLA; 'ddp' and 'fsdp' train on CPUs and GPUs";
constexpr std::string_view kDataParallel = "one process per device by 'ddp' does the same faster";

constexpr ForeignWord kStrategiesOfLightning[] = {
    {"ddp_find_unused_parameters_false ddp_fork ddp_notebook ddp_spawn", option, "ddp"},
    {"ddp_fully_sharded", option, "fsdp"},
    {"ddp_sharded ddp_sharded_find_unused_parameters_false ddp_sharded_spawn deepspeed", option, "zero2"},
    {"deepspeed_stage_1", option, "zero1"},
    {"deepspeed_stage_2", option, "zero2"},
    {"deepspeed_stage_3 fsdp_native", option, "fsdp"},
    {"ddpstrategy", option, "ddp"},
    {"ddpfullyshardedstrategy ddpfullyshardednativestrategy", option, "fsdp"},
    {"ddpshardedstrategy ddpspawnshardedstrategy", option, "zero2"},
    {"ddpspawnstrategy", option, "ddp"},
    {"deepspeedstrategy", option, "zero2"},
    {"fsdpstrategy", option, "fsdp"},
    {"singledevicestrategy", option, "auto"},
    {"deepspeed_stage_1_offload deepspeed_stage_2_offload deepspeed_stage_3_offload deepspeed_stage_3_offload_nvme "
     "fsdp_cpu_offload fsdp_native_full_shard_offload",
     refused, kUseFsdp},
    {"dp dataparallelstrategy", refused, kDataParallel},
    {"model_parallel modelparallelstrategy", refused, kNoLayerSplit},
    {"single_tpu single_xla tpu_spawn xla xla_debug xla_fsdp", refused, kNoXla},
};

constexpr ForeignWord kStrategiesOfAccelerate[] = {
    {"deepspeedplugin", option, "zero2"},
    {"fullyshardeddataparallelplugin fsdp2", option, "fsdp"},
    {"megatron_lm", refused, kNoLayerSplit},
    {"multi_cpu multi_gpu", option, "ddp"},
};

constexpr ForeignWord kStrategiesOfPyTorch[] = {
    {"dataparallel", refused, kDataParallel},
    {"distributeddataparallel", option, "ddp"},
    {"fully_shard fullyshardeddataparallel", option, "fsdp"},
    {"zeroredundancyoptimizer", option, "zero1"},
    {"full_shard", option, "fsdp"},
    {"hybrid_shard", option, "hsdp"},
    {"hybrid_shard_zero2 _hybrid_shard_zero2", option, "hsdp", "", false, "", "reshard_after_forward=false"},
    {"no_shard", option, "ddp"},
    {"shard_grad_op", option, "fsdp", "", false, "", "reshard_after_forward=false"},
};

constexpr ForeignWord kStrategiesOfFairscale[] = {
    {"oss", option, "zero1"},
    {"shardeddataparallel", option, "zero2"},
};

// Fields of sharded training

constexpr std::string_view kNoOffload =
    "parameters and states stay on the device; shard them over more ranks, or over smaller batches";
constexpr std::string_view kNoActivationOffload =
    "activations stay on the device; the option recompute makes those of blocks again";
constexpr std::string_view kWholeActivations =
    "each rank has the activations of its own samples, and replays are ordered by the device; the option recompute "
    "makes activations again";
constexpr std::string_view kByTheRuntime =
    "it is chosen for the whole program: give timeout among the options of the object that prepares; the backend "
    "follows from the device";
constexpr std::string_view kNoLayerCuts = "layers and sequences are not split over ranks; leave the size at 1";
constexpr std::string_view kWholeModel = "each rank builds the whole model in its memory";
constexpr std::string_view kByTensor = "states are always written tensor by tensor";
constexpr std::string_view kAlwaysSo = "always so";
constexpr std::string_view kReducedTogether = "a unit's gradients are reduced together";
constexpr std::string_view kStaysThere =
    "parameters and gradients stay on the device; shard them over more ranks, or over smaller batches";
constexpr std::string_view kOff = "false none";

constexpr ForeignWord kFieldsOfAccelerate[] = {
    {"activation_checkpointing", option, "activation_checkpointing", "", false, "FSDP_ACTIVATION_CHECKPOINTING"},
    {"activation_checkpointing_offload", refused, kNoActivationOffload, kOff, false,
     "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"},
    {"cp_size", refused, kNoLayerCuts, "1", false, "PARALLELISM_CONFIG_CP_SIZE"},
    {"cpu_ram_efficient_loading", ignored, kWholeModel, "", false, "FSDP_CPU_RAM_EFFICIENT_LOADING"},
    {"dp_replicate_size", option, "replicas", "1", false, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"},
    {"dp_shard_size", option, "shard_group_size", "1", false, "PARALLELISM_CONFIG_DP_SHARD_SIZE"},
    {"fsdp_version", ignored, "there is one engine", "", false, "FSDP_VERSION"},
    {"min_num_params", in_code, "unit_min_elements, unless auto_wrap_policy says otherwise", "", false,
     "FSDP_MIN_NUM_PARAMS"},
    {"mixed_precision_policy", in_code, "a dtype: param_dtype, reduce_dtype and buffer_dtype"},
    {"offload_params", refused, kNoOffload, kOff},
    {"optim_state_dict_config", ignored, kByTensor},
    {"sp_size", refused, kNoLayerCuts, "1", false, "PARALLELISM_CONFIG_SP_SIZE"},
    {"state_dict_config", ignored, kByTensor},
    {"state_dict_type", in_code, "no effect: save_state() is sharded and save_model() is full; LOCAL is refused", "",
     false, "FSDP_STATE_DICT_TYPE"},
    {"tp_size", refused, kNoLayerCuts, "1", false, "PARALLELISM_CONFIG_TP_SIZE"},
    {"transformer_cls_names_to_wrap", in_code, "unit_classes, unless auto_wrap_policy says otherwise", "", false,
     "FSDP_TRANSFORMER_CLS_TO_WRAP"},
};

constexpr ForeignWord kFieldsOfLightning[] = {
    {"activation_checkpointing_policy", option, "activation_checkpointing"},
    {"process_group_backend timeout", refused, kByTheRuntime},
};

constexpr ForeignWord kFieldsOfPyTorch[] = {
    {"auto_wrap_policy", in_code,
     "NO_WRAP: auto_wrap=false; SIZE_BASED_WRAP: unit_min_elements; TRANSFORMER_BASED_WRAP: unit_classes", "", false,
     "FSDP_AUTO_WRAP_POLICY"},
    {"backward_prefetch", in_code, "BACKWARD_PRE, which is always so; others are refused", "", false,
     "FSDP_BACKWARD_PREFETCH"},
    {"cpu_offload", refused, kNoOffload, kOff, false, "FSDP_OFFLOAD_PARAMS"},
    {"device_id", ignored, "each rank has one device, which the program or the launcher chooses"},
    {"device_mesh", in_code, "(replicate, shard): replicas and shard_group_size"},
    {"forward_prefetch", ignored, kAlwaysSo, "", false, "FSDP_FORWARD_PREFETCH"},
    {"ignored_modules", option, "ignored_modules", "", false, "FSDP_IGNORED_MODULES"},
    {"ignored_states", refused, "what stays whole is said by module: name them in ignored_modules"},
    {"limit_all_gathers", ignored, "limit_gathered_mb always bounds what is gathered"},
    {"mesh", in_code, "as device_mesh"},
    {"mixed_precision", in_code, "as mixed_precision_policy; true (fairscale): f16"},
    {"mp_policy", in_code, "as mixed_precision_policy"},
    {"offload_policy", refused, kNoOffload, "none offloadpolicy"},
    {"param_init_fn", refused,
     "initialise the module before prepare(), on every rank or on rank 0 alone, whose values all ranks take"},
    {"process_group", refused,
     "sharded training goes over all ranks of the program; shard_group_size cuts them into groups"},
    {"reshard_after_forward", in_code, "the same; also the words of sharding_strategy", "", false,
     "FSDP_RESHARD_AFTER_FORWARD"},
    {"shard_placement_fn", refused,
     "each rank holds a run of a unit's elements in the order of memory, whatever their shape"},
    {"sharding_strategy", in_code,
     "FULL_SHARD; SHARD_GRAD_OP: reshard_after_forward=false; NO_SHARD: stage=none; HYBRID_SHARD: shard_group_size=-1; "
     "HYBRID_SHARD_ZERO2: both",
     "", false, "FSDP_SHARDING_STRATEGY"},
    {"sync_module_states", ignored, kAlwaysSo, "", false, "FSDP_SYNC_MODULE_STATES"},
    {"use_orig_params", ignored, "parameters always stay your own", "", false, "FSDP_USE_ORIG_PARAMS"},
};

/// Arguments of FullyShardedDataParallel and ShardedDataParallel.
constexpr ForeignWord kFieldsOfFairscale[] = {
    {"auto_refresh_trainable", ignored},
    {"broadcast_model_buffers", ignored, "buffers get the main process's values after each step"},
    {"bucket_cap_mb", ignored, kReducedTogether},
    {"clear_autocast_cache", ignored, kAlwaysSo},
    {"compute_device", ignored, "each rank has one device"},
    {"compute_dtype", in_code, "param_dtype"},
    {"disable_reshard_on_root", ignored, "the root's parameters stay between forward and backward"},
    {"flatten_parameters", ignored, kAlwaysSo},
    {"force_input_to_fp32", in_code, "where true: cast_forward_inputs=false"},
    {"fp32_reduce_scatter", in_code, "where true: reduce_dtype=f32"},
    {"gradient_predivide_factor", option, "predivide_factor"},
    {"move_grads_to_cpu move_params_to_cpu", refused, kStaysThere, kOff},
    {"no_broadcast_optim_state", ignored, "each rank saves and loads its own part"},
    {"process_group_reduce_scatter", refused,
     "both directions go over the same ranks; shard_group_size cuts them into groups"},
    {"reduce_buffer_size", ignored, kReducedTogether},
    {"reduce_fp16", in_code, "where true: reduce_dtype=f16"},
    {"state_dict_device", ignored, "files are written from where the parameters are"},
    {"state_dict_on_rank_0_only", ignored, "save_model() writes once"},
    {"sync_models_at_startup", ignored, kAlwaysSo},
    {"verbose", ignored, "plan() says everything"},
    {"warn_on_trainable_params_changed", ignored},
};

// Flags of launchers that somebody gives to `muster run`

constexpr ForeignWord kFlagsOfTorchrun[] = {
    {"nproc_per_node", option, "--devices"},
    {"nnodes", option, "--nodes"},
    {"master_addr", option, "--main-address"},
    {"master_port", option, "--main-port"},
    {"rdzv_endpoint", option, "--main-address and --main-port"},
    {"rdzv_backend", ignored, "ranks rendezvous at --main-address"},
    {"rdzv_id", ignored, "a job is known by its address and secret"},
    {"rdzv_conf", option, "--join-timeout, --last-call-timeout and --heartbeat-timeout; --timeout for ranks"},
    {"standalone", ignored, "one node is the default"},
    {"monitor_interval", ignored, "an end is noticed at once"},
    {"no_python", ignored, "the program is executed as it is"},
    {"log_line_prefix_template", option, "--prefix or --no-prefix"},
    {"redirects tee local_ranks_filter", option, "--log-dir"},
};

constexpr ForeignWord kFlagsOfAccelerate[] = {
    {"num_processes", option, "--devices"},
    {"num_machines", option, "--nodes"},
    {"machine_rank", option, "--node-rank"},
    {"main_process_ip", option, "--main-address"},
    {"main_process_port", option, "--main-port"},
    {"main_training_function", ignored, "main() is executed"},
    {"gpu_ids", option, "--devices, such as 0,2"},
    {"multi_gpu", option, "--devices and --strategy ddp"},
    {"cpu use_cpu", option, "--accelerator cpu"},
    {"num_cpu_threads_per_process", option, "--threads"},
    {"config_file", option, "--config"},
    {"use_fsdp", option, "--strategy fsdp"},
    {"use_deepspeed", option, "--strategy zero2"},
    {"zero_stage", option, "--strategy zero1, zero2 or zero3"},
    {"fsdp_sharding_strategy", option, "--fsdp sharding_strategy=..."},
    {"fsdp_auto_wrap_policy", option, "--fsdp auto_wrap_policy=..."},
    {"fsdp_transformer_layer_cls_to_wrap", option, "--fsdp-unit-classes"},
    {"fsdp_min_num_params", option, "--fsdp-unit-min-elements"},
};

constexpr ForeignWord kFlagsOfFabric[] = {
    {"main_process_address", option, "--main-address"},
};

constexpr ForeignWord kFlagsOfMpirun[] = {
    {"n np", option, "--devices"},
    {"host H hostfile", option, "--nodes, --node-rank and --main-address on each node"},
    {"x", ignored, "the environment is passed on"},
};

constexpr ForeignWord kFlagsOfSrun[] = {
    {"ntasks ntasks_per_node", option, "--devices"},
    {"N", option, "--nodes"},
};

// Flags of `accelerate launch`, and keys of the file of `accelerate config`

constexpr std::string_view kOfOffload = "it belongs to offloading, which is refused";
constexpr std::string_view kNoOffloadOfState =
    "parameters, gradients and states stay on the device; shard them over more ranks, or write none";
constexpr std::string_view kNoCompiler = "there is no compiler for C++ modules";
constexpr std::string_view kWithTpu = "it belongs to --tpu, which is refused";
constexpr std::string_view kWithMegatron = "it belongs to --use_megatron_lm, which is refused";
constexpr std::string_view kWithFp8 = "it belongs to --mixed_precision fp8, which is refused";
constexpr std::string_view kWithSageMaker = "it belongs to Amazon SageMaker; see `muster submit sagemaker`";
constexpr std::string_view kWithSequences = "it belongs to sp_size, which is refused";
constexpr std::string_view kWithContext = "it belongs to cp_size, which is refused";
constexpr std::string_view kEachNode = "call `muster launch` on each node, with --machine_rank and --main_process_ip";
constexpr std::string_view kNoTpu =
    "LibTorch has no backend for TPUs; take a CPU or GPU, or, if the program loads one, name it: --accelerator tpu";
constexpr std::string_view kNoMegatron = "the layers of a model are not split over ranks; use --use_fsdp instead";
constexpr std::string_view kAwsKeys =
    "`muster submit sagemaker` leaves them to the AWS command line; no key is kept by Muster";

constexpr ForeignWord kGeneral[] = {
    {"config_file", in_code, "the file to read; without it ours, else Accelerate's"},
    {"quiet", in_code, "do not say which file is read", "", true},
    {"module", refused, "a program is executed as it is; drop --module", "false", true},
    {"no_python", ignored, "a program is executed as it is", "", true},
    {"debug", ignored, "ranks always check what they exchange", "", true},
};

constexpr ForeignWord kHardware[] = {
    {"cpu", in_code, "train on the CPU: --accelerator cpu", "", true},
    {"multi_gpu", in_code, "several ranks", "", true},
    {"tpu", refused, kNoTpu, "false", true},
};

constexpr ForeignWord kResources[] = {
    {"mixed_precision", in_code, "no, fp16 or bf16: --precision"},
    {"num_processes", in_code, "ranks on all machines together: --devices on each"},
    {"num_machines", option, "nodes"},
    {"num_cpu_threads_per_process", option, "threads"},
    {"enable_cpu_affinity", ignored, "ranks keep near their GPUs unless --no-affinity is given", "", true},
    {"dynamo_backend", warned, kNoCompiler, "no"},
    {"dynamo_mode", ignored, kNoCompiler},
    {"dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation", ignored, kNoCompiler, "", true},
};

constexpr ForeignWord kParadigm[] = {
    {"use_deepspeed", in_code, "--strategy zero1, zero2 or zero3, by --zero_stage", "", true},
    {"use_fsdp", in_code, "--strategy fsdp, with the flags of FSDP", "", true},
    {"use_parallelism_config", in_code, "follow the flags of ParallelismConfig", "", true},
    {"use_megatron_lm", refused, kNoMegatron, "false", true},
};

constexpr ForeignWord kDistributed[] = {
    {"gpu_ids", in_code, "accelerators of this machine, such as 0,2: --devices 0,2"},
    {"same_network", ignored, "ranks always rendezvous at --main_process_ip", "", true},
    {"machine_rank", option, "node_rank"},
    {"main_process_ip", option, "main_address"},
    {"main_process_port", option, "main_port"},
    {"tee", ignored, "output is always shown, and written into --log_dir too"},
    {"log_dir", option, "log_dir"},
    {"role", warned, "ranks have no roles", "default"},
    {"rdzv_backend", ignored, "ranks always rendezvous at --main_process_ip"},
    {"rdzv_conf", warned, "--timeout bounds the rendezvous"},
    {"max_restarts", option, "max_restarts", "0"},
    {"monitor_interval", ignored, "an end is noticed at once"},
};

constexpr ForeignWord kMpi[] = {
    {"mpirun_hostfile", refused, "start the program by mpirun itself: mpirun --hostfile FILE PROGRAM"},
};

constexpr ForeignWord kTpu[] = {
    {"tpu_cluster", refused, kNoTpu, "false", true},
    {"tpu_use_sudo", ignored, kWithTpu, "", true},
    {"vm env", ignored, kWithTpu},
    {"main_training_function", ignored, "main() is executed"},
    {"downcast_bf16", ignored, kWithTpu, "", true},
};

constexpr ForeignWord kAws[] = {
    {"aws_access_key_id aws_secret_access_key", refused, kAwsKeys},
};

constexpr ForeignWord kDeepspeed[] = {
    {"deepspeed_config_file", in_code,
     "its stage, accumulation and precision are followed; every other key has no effect or is refused"},
    {"zero_stage", in_code, "0: --strategy ddp; 1, 2, 3: zero1, zero2, zero3"},
    {"offload_optimizer_device offload_param_device", refused, kNoOffloadOfState, "none"},
    {"offload_optimizer_nvme_path offload_param_nvme_path", ignored, kOfOffload},
    {"gradient_accumulation_steps", option, "gradient_accumulation.num_steps", "auto"},
    {"gradient_clipping", refused,
     "the program clips, by clip_grad_norm_(); a Trainer does by --trainer-gradient-clip-val", "none auto 0 0.0"},
    {"zero3_init_flag", warned, kWholeModel, "false"},
    {"zero3_save_16bit_model", ignored, "save_model() always writes full weights"},
    {"deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter", refused, kEachNode},
    {"deepspeed_multinode_launcher", refused, kEachNode, "standard"},
    {"deepspeed_moe_layer_cls_names", refused, "there is no training of mixtures of experts"},
};

constexpr ForeignWord kFsdp[] = {
    {"fsdp_version", sharding, "fsdp_version"},
    {"fsdp_offload_params", sharding, "offload_params"},
    {"fsdp_min_num_params", sharding, "min_num_params"},
    {"fsdp_sharding_strategy", sharding, "sharding_strategy"},
    {"fsdp_reshard_after_forward", sharding, "reshard_after_forward"},
    {"fsdp_auto_wrap_policy", sharding, "auto_wrap_policy"},
    {"fsdp_transformer_layer_cls_to_wrap", sharding, "transformer_cls_names_to_wrap"},
    {"fsdp_backward_prefetch", sharding, "backward_prefetch"},
    {"fsdp_state_dict_type", sharding, "state_dict_type"},
    {"fsdp_forward_prefetch", sharding, "forward_prefetch"},
    {"fsdp_use_orig_params", sharding, "use_orig_params"},
    {"fsdp_cpu_ram_efficient_loading", warned, kWholeModel, "false"},
    {"fsdp_sync_module_states", sharding, "sync_module_states"},
    {"fsdp_activation_checkpointing", sharding, "activation_checkpointing"},
    {"fsdp_activation_checkpointing_offload", sharding, "activation_checkpointing_offload"},
};

constexpr ForeignWord kParallelism[] = {
    {"parallelism_config_dp_replicate_size", sharding, "dp_replicate_size"},
    {"parallelism_config_dp_shard_size", sharding, "dp_shard_size"},
    {"parallelism_config_tp_size", sharding, "tp_size"},
    {"parallelism_config_cp_size", sharding, "cp_size"},
    {"parallelism_config_cp_backend parallelism_config_cp_comm_strategy", ignored, kWithContext},
    {"parallelism_config_sp_size", sharding, "sp_size"},
    {"parallelism_config_sp_backend parallelism_config_sp_seq_length parallelism_config_sp_seq_length_is_variable "
     "parallelism_config_sp_attn_implementation",
     ignored, kWithSequences},
};

constexpr ForeignWord kKeysOfFile[] = {
    {"compute_environment", in_code, "LOCAL_MACHINE; AMAZON_SAGEMAKER is refused"},
    {"distributed_type", in_code, "NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED; others are refused"},
    {"use_cpu", in_code, "as --cpu"},
    {"fp16", in_code, "as mixed_precision: fp16"},
    {"fsdp_ignored_modules", sharding, "ignored_modules"},
    {"fsdp_backward_prefetch_policy", sharding, "backward_prefetch"},
    {"mpirun_ccl", ignored, "it belongs to mpirun, which is refused"},
    {"fp8_amax_history_length fp8_amax_compute_algorithm fp8_optimization_level", ignored, kWithFp8},
    {"tpu_use_cluster", refused, kNoTpu, "false"},
    {"tpu_name tpu_zone tpu_vm tpu_env command_file commands", ignored, kWithTpu},
};

constexpr ForeignWord kMegatron[] = {
    {"megatron_lm_tp_degree megatron_lm_use_custom_fsdp megatron_lm_no_load_optim megatron_lm_eod_mask_loss "
     "megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload "
     "megatron_lm_use_precision_aware_optimizer megatron_lm_decoder_last_pipeline_num_layers megatron_lm_pp_degree "
     "megatron_lm_num_micro_batches megatron_lm_sequence_parallelism megatron_lm_recompute_activations "
     "megatron_lm_use_distributed_optimizer megatron_lm_gradient_clipping megatron_lm_recompute_granularity "
     "megatron_lm_recompute_method megatron_lm_recompute_num_layers megatron_lm_attention_backend "
     "megatron_lm_expert_model_parallel_size megatron_lm_context_parallel_size megatron_lm_attention_dropout "
     "megatron_lm_hidden_dropout megatron_lm_attention_softmax_in_fp32 megatron_lm_expert_tensor_parallel_size "
     "megatron_lm_calculate_per_token_loss megatron_lm_use_rotary_position_embeddings",
     warned, kWithMegatron},
};

constexpr ForeignWord kFp8[] = {
    {"fp8_backend", warned, kWithFp8},
    {"fp8_use_autocast_during_eval", warned, kWithFp8, "", true},
    {"fp8_margin fp8_interval fp8_format fp8_amax_history_len fp8_amax_compute_algo fp8_override_linear_precision "
     "fp8_opt_level fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim",
     warned, kWithFp8},
};

constexpr ForeignWord kSageMaker[] = {
    {"ec2_instance_type iam_role_name image_uri profile region base_job_name py_version pytorch_version "
     "transformers_version additional_args sagemaker_inputs_file sagemaker_metrics_file",
     ignored, kWithSageMaker},
};

// Keys of DeepSpeed's file, where null and "auto" ask for nothing; of `in_code` the text is Accelerate's name

constexpr std::string_view kByLoaders = "the program's data loaders say it";
constexpr std::string_view kOwnEngine = "units are gathered and reduced as their sizes say";
constexpr std::string_view kOwnOrder = "gradients are reduced in an order of their own";
constexpr std::string_view kNoQuantization = "parameters and gradients are exchanged in their own dtype; take it out";
constexpr std::string_view kOwnScale =
    "the loss scale follows the options of grad_scaler: write --grad-scaler-init-scale and the like";
constexpr std::string_view kOtherTraining = "it trains another model, which only the program can make; take it out";
constexpr std::string_view kNoModelParallel = "the layers of a model are not split over ranks; take it out";
constexpr std::string_view kNoExperts = "there is no training of mixtures of experts; take it out";
constexpr std::string_view kNoMonitor = "the program chooses its trackers";
constexpr std::string_view kNoProfiler = "`muster run` measures nothing; see the page `look_inside`";
constexpr std::string_view kOwnFiles = "save_state() writes and reads checkpoints of its own";
constexpr std::string_view kWithSwitch = "it belongs to the switch of its section";

constexpr ForeignWord kKeysOfZero[] = {
    {"zero_optimization", refused, "write a section that holds stage", "false"},
    {"zero_optimization.stage", in_code, "zero_stage"},
    {"zero_optimization.offload_optimizer.device", in_code, "offload_optimizer_device"},
    {"zero_optimization.offload_param.device", in_code, "offload_param_device"},
    {"zero_optimization.offload_optimizer. zero_optimization.offload_param.", ignored, kOfOffload},
    {"zero_optimization.cpu_offload zero_optimization.cpu_offload_param zero_optimization.cpu_offload_params", refused,
     kNoOffloadOfState, "false"},
    {"zero_optimization.cpu_offload_use_pin_memory", ignored, kOfOffload},
    {"zero_optimization.zenflow.", refused, kNoOffloadOfState},
    {"zero_optimization.zero_hpz_partition_size", refused, "write --strategy hsdp instead", "1"},
    {"zero_optimization.mics_shard_size", refused, "write --fsdp-shard-group-size instead", "-1"},
    {"zero_optimization.mics_hierarchical_params_gather", warned, kOwnEngine, "false"},
    {"zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_nontrainable_weights "
     "zero_optimization.zero_quantized_gradients",
     refused, kNoQuantization, "false"},
    {"zero_optimization.zeropp_loco_param.", refused, kNoQuantization},
    {"zero_optimization.stage3_max_live_parameters", warned, "--fsdp-limit-gathered-mb bounds what is gathered", "1e9"},
    {"zero_optimization.stage3_max_reuse_distance", warned, kOwnEngine, "1e9"},
    {"zero_optimization.stage3_prefetch_bucket_size", warned, kOwnEngine, "5e7"},
    {"zero_optimization.stage3_param_persistence_threshold", warned, kOwnEngine, "1e5"},
    {"zero_optimization.stage3_model_persistence_threshold", warned, kOwnEngine, "9223372036854775807"},
    {"zero_optimization.stage3_module_granularity_threshold", warned, "--fsdp-unit-min-elements says it", "0"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params zero_optimization.stage3_allgather_sequential", warned,
     kOwnEngine, "false"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save "
     "zero_optimization.stage3_gather_fp16_weights_on_model_save",
     ignored, "save_model() always writes full weights"},
    {"zero_optimization.contiguous_gradients zero_optimization.reduce_scatter", warned, kOwnEngine, "true"},
    {"zero_optimization.reduce_bucket_size", warned, kOwnEngine, "5e8"},
    {"zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.allgather_partitions", warned, kOwnEngine,
     "true"},
    {"zero_optimization.allgather_bucket_size", warned, kOwnEngine, "5e8"},
    {"zero_optimization.overlap_comm", warned, "communication always overlaps", "true"},
    {"zero_optimization.load_from_fp32_weights", warned, kOwnFiles, "true"},
    {"zero_optimization.elastic_checkpoint", warned, kOwnFiles, "false true"},
    {"zero_optimization.pipeline_loading_checkpoint", warned, kOwnFiles, "false"},
    {"zero_optimization.sub_group_size", warned, kOwnEngine, "1e9"},
    {"zero_optimization.ignore_unused_parameters", warned, "parameters without a gradient are always allowed", "true"},
    {"zero_optimization.legacy_stage1 zero_optimization.round_robin_gradients", warned, kOwnEngine, "false"},
    {"zero_optimization.memory_efficient_linear zero_optimization.override_module_apply", warned, kOwnEngine, "true"},
    {"zero_optimization.log_trace_cache_warnings", warned, kOwnEngine, "false"},
    {"zero_optimization.enable_sanity_checks", ignored, "ranks always check what they exchange"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", warned, kOwnEngine, "false"},
    {"zero_optimization.leaf_module.", warned, "--fsdp-unit-classes and --fsdp-unit-names choose the units"},
};

constexpr ForeignWord kKeysOfTraining[] = {
    {"train_batch_size train_micro_batch_size_per_gpu", warned, kByLoaders},
    {"dataloader_drop_last", warned, kByLoaders, "false"},
    {"gradient_accumulation_steps", in_code, "gradient_accumulation_steps"},
    {"managed_gradient_accumulation", warned, "the program says when a window ends", "true"},
    {"gradient_clipping", in_code, "gradient_clipping"},
    {"bf16.enabled bfloat16.enabled", in_code, "mixed_precision: bf16"},
    {"fp16.enabled", in_code, "mixed_precision: fp16"},
    {"bf16.check_grad_overflow", warned, "bfloat16 needs no loss scale", "true false"},
    {"bf16.immediate_grad_update", warned, kOwnEngine, "false"},
    {"bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states", refused, "write --precision bf16-true instead",
     "false"},
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
    {"sparse_gradients disable_allgather", warned, kOwnEngine, "false"},
    {"data_types.grad_accum_dtype", refused, "gradients add up in the dtype of their parameters; take it out",
     "none fp32"},
    {"data_types.param_dtype", refused, "write --fsdp-param-dtype instead", "none"},
    {"data_types.buffer_dtype", refused, "write --fsdp-buffer-dtype instead", "none"},
    {"optimizer.", refused, "the program makes its optimizer; take the section out"},
    {"scheduler.", refused, "the program makes its scheduler; take the section out"},
    {"zero_allow_untested_optimizer", ignored, "every optimizer may be sharded"},
    {"zero_force_ds_cpu_optimizer aio.", ignored, kOfOffload},
};

constexpr ForeignWord kKeysOfModels[] = {
    {"activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing", refused,
     kNoActivationOffload, "false"},
    {"activation_checkpointing.contiguous_memory_optimization activation_checkpointing.number_checkpoints "
     "activation_checkpointing.synchronize_checkpoint_boundary activation_checkpointing.profile",
     ignored, kWholeActivations},
    {"moe.", refused, kNoExperts},
    {"moe", refused, kNoExperts, "false"},
    {"expert_parallel.", refused, kNoExperts},
    {"use_data_before_expert_parallelism", refused, kNoExperts, "false"},
    {"tensor_parallel.autotp_size", refused, kNoModelParallel, "0 1"},
    {"tensor_parallel.tp_size tensor_parallel.tp.tp_size tensor_parallel.tensor_parallel.tp_size", refused,
     kNoModelParallel, "1"},
    {"tensor_parallel.", ignored, "it belongs to the size of tensor parallelism, which is refused"},
    {"sequence_parallel_size", refused, kNoModelParallel, "1"},
    {"pipeline.", refused, kNoModelParallel},
    {"progressive_layer_drop.enabled", refused, kOtherTraining, "false"},
    {"progressive_layer_drop.", ignored, kWithSwitch},
    {"curriculum_learning.enabled data_efficiency.enabled", refused, kByLoaders, "false"},
    {"curriculum_learning. data_efficiency.", ignored, kWithSwitch},
    {"hybrid_engine.enabled", refused, kOtherTraining, "false"},
    {"hybrid_engine.", ignored, kWithSwitch},
    {"sparse_attention. compression_training. quantize_training. weight_quantization.", refused, kOtherTraining},
    {"elasticity.enabled", refused, "write --nodes MIN:MAX instead", "false"},
    {"elasticity.", ignored, kWithSwitch},
    {"compile.deepcompile", warned, kNoCompiler, "false"},
    {"compile.", ignored, kNoCompiler},
    {"graph_harvesting", warned, kNoCompiler, "false"},
    {"vocabulary_size", ignored, "nothing here needs it"},
};

constexpr ForeignWord kKeysOfOutput[] = {
    {"steps_per_print", ignored, "the program prints"},
    {"log_level", ignored, "MUSTER_LOG says it"},
    {"dump_state wall_clock_breakdown memory_breakdown", warned, kNoProfiler, "false"},
    {"timers.", warned, kNoProfiler},
    {"comms_logger.enabled flops_profiler.enabled eigenvalue.enabled", warned, kNoProfiler, "false"},
    {"comms_logger. flops_profiler. eigenvalue.", ignored, kWithSwitch},
    {"autotuning.enabled", warned, "nothing is tuned", "false"},
    {"autotuning.", ignored, kWithSwitch},
    {"tensorboard.enabled wandb.enabled comet.enabled csv_monitor.enabled", warned, kNoMonitor, "false"},
    {"tensorboard. wandb. comet. csv_monitor.", ignored, kWithSwitch},
    {"nebula.enabled", warned, kOwnFiles, "false"},
    {"nebula.", ignored, kWithSwitch},
    {"datastates_ckpt.", warned, kOwnFiles},
    {"checkpoint.tag_validation", ignored, "checkpoints are always checked"},
    {"checkpoint.", warned, kOwnFiles, "false"},
};

// Lightning's Trainer, LightningCLI, and variables

constexpr std::string_view kInCode = "only code can give it";
constexpr std::string_view kNotFollowed = "is not followed here; take it out";
constexpr std::string_view kOfModule =
    "is what configure_optimizers() of the module returns here; take it out, or make what it says options of the "
    "module";

constexpr ForeignWord kArgumentsOfTrainer[] = {
    {"callbacks", warned, kInCode},
    {"enable_autolog_hparams", warned, kInCode, "true"},
    {"logger", warned, kInCode, "true false"},
    {"model_registry plugins profiler", warned, kInCode},
    {"use_distributed_sampler", warned, kInCode, "true"},
};

constexpr ForeignWord kKeysOfCli[] = {
    {"lr_scheduler optimizer", refused, kOfModule},
    {"return_predictions", refused, kNotFollowed, "null"},
    {"verbose", refused, kNotFollowed, "null true"},
    {"weights_only", refused, kNotFollowed, "null"},
};

/// Accelerate's launcher always sets some of these.
constexpr ForeignWord kVariablesOfAccelerate[] = {
    {"ACCELERATE_CPU_AFFINITY", ignored, "the option affinity is on by itself"},
    {"ACCELERATE_DEBUG_MODE", ignored, "ranks always check what they exchange"},
    {"ACCELERATE_DEEPSPEED_ZERO_STAGE", in_code,
     "with ACCELERATE_USE_DEEPSPEED, 0: strategy ddp; 1, 2, 3: zero1, zero2, zero3"},
    {"ACCELERATE_DYNAMO_BACKEND", warned, kNoCompiler, "no"},
    {"ACCELERATE_DYNAMO_MODE", warned, kNoCompiler, "default"},
    {"ACCELERATE_DYNAMO_USE_DYNAMIC ACCELERATE_DYNAMO_USE_FULLGRAPH ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", warned,
     kNoCompiler, "false"},
    {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", option, "gradient_accumulation.num_steps"},
    {"ACCELERATE_MIXED_PRECISION", option, "precision"},
    {"ACCELERATE_TORCH_DEVICE", in_code, "accelerator, without the index"},
    {"ACCELERATE_USE_CPU", in_code, "where true: accelerator cpu"},
    {"ACCELERATE_USE_DEEPSPEED", in_code,
     "where true: strategy zero2, unless ACCELERATE_DEEPSPEED_ZERO_STAGE says otherwise"},
    {"ACCELERATE_USE_FSDP", in_code, "where true: strategy fsdp, if nothing else names one"},
    {"ACCELERATE_USE_MEGATRON_LM", warned, kNoMegatron, "false"},
    {"ACCELERATE_USE_PARALLELISM_CONFIG", ignored, "the sizes in PARALLELISM_CONFIG_ variables count by themselves"},
};

/// Those of the Trainer's arguments, PL_TRAINER_MAX_EPOCHS and so on, follow from the names of the options.
constexpr ForeignWord kVariablesOfLightning[] = {
    {"LT_ACCELERATOR", option, "accelerator"}, {"LT_CLI_USED", ignored, "Fabric's launcher always sets it"},
    {"LT_DEVICES", option, "devices"},         {"LT_NUM_NODES", option, "num_nodes"},
    {"LT_PRECISION", option, "precision"},     {"LT_STRATEGY", option, "strategy"},
};

/// Words of one tool at one place.
struct Section {
  Tool tool;
  Place place;
  std::span<const ForeignWord> words;
  Group group = Group::none;
};

constexpr Section kSections[] = {
    {Tool::lightning, Place::strategy, kStrategiesOfLightning},
    {Tool::accelerate, Place::strategy, kStrategiesOfAccelerate},
    {Tool::pytorch, Place::strategy, kStrategiesOfPyTorch},
    {Tool::fairscale, Place::strategy, kStrategiesOfFairscale},
    {Tool::accelerate, Place::sharding, kFieldsOfAccelerate},
    {Tool::lightning, Place::sharding, kFieldsOfLightning},
    {Tool::pytorch, Place::sharding, kFieldsOfPyTorch},
    {Tool::fairscale, Place::sharding, kFieldsOfFairscale},
    {Tool::torchrun, Place::run, kFlagsOfTorchrun},
    {Tool::accelerate, Place::run, kFlagsOfAccelerate},
    {Tool::lightning, Place::run, kFlagsOfFabric},
    {Tool::mpi, Place::run, kFlagsOfMpirun},
    {Tool::slurm, Place::run, kFlagsOfSrun},
    {Tool::accelerate, Place::launch, kGeneral, Group::general},
    {Tool::accelerate, Place::launch, kHardware, Group::hardware},
    {Tool::accelerate, Place::launch, kResources, Group::resources},
    {Tool::accelerate, Place::launch, kParadigm, Group::paradigm},
    {Tool::accelerate, Place::launch, kDistributed, Group::distributed},
    {Tool::accelerate, Place::launch, kMpi, Group::mpi},
    {Tool::accelerate, Place::launch, kTpu, Group::tpu},
    {Tool::accelerate, Place::launch, kAws, Group::aws},
    {Tool::accelerate, Place::launch, kDeepspeed, Group::deepspeed},
    {Tool::accelerate, Place::launch, kFsdp, Group::fsdp},
    {Tool::accelerate, Place::launch, kParallelism, Group::parallelism},
    {Tool::accelerate, Place::launch, kKeysOfFile, Group::file},
    {Tool::accelerate, Place::launch, kMegatron, Group::megatron},
    {Tool::accelerate, Place::launch, kFp8, Group::fp8},
    {Tool::accelerate, Place::launch, kSageMaker, Group::file},
    {Tool::deepspeed, Place::deepspeed, kKeysOfZero},
    {Tool::deepspeed, Place::deepspeed, kKeysOfTraining},
    {Tool::deepspeed, Place::deepspeed, kKeysOfModels},
    {Tool::deepspeed, Place::deepspeed, kKeysOfOutput},
    {Tool::lightning, Place::trainer, kArgumentsOfTrainer},
    {Tool::lightning, Place::cli, kKeysOfCli},
    {Tool::accelerate, Place::variable, kVariablesOfAccelerate},
    {Tool::lightning, Place::variable, kVariablesOfLightning},
};

}  // namespace tables
}  // namespace

std::span<const ForeignWord> foreign_words() {
  static const std::vector<ForeignWord> all = [] {
    std::vector<ForeignWord> words;
    for (const auto& section : tables::kSections)
      for (const auto& row : section.words)
        for (const auto one : std::views::split(row.word, ' ')) {
          auto& word = words.emplace_back(row);
          word.word = {one.begin(), one.end()};
          word.tool = section.tool;
          word.place = section.place;
          word.group = section.group;
        }
    return words;
  }();
  return all;
}

std::span<const ForeignWord> foreign_words(Place place) {
  const auto of_place = std::ranges::equal_range(foreign_words(), place, {}, &ForeignWord::place);
  return {of_place.begin(), of_place.end()};
}

const ForeignWord* find_foreign_word(Place place, std::string_view word) {
  const auto words = foreign_words(place);
  const auto found = std::ranges::find(words, word, &ForeignWord::word);
  return found == words.end() ? nullptr : &*found;
}

bool asks_for_nothing(const ForeignWord& word, std::string_view value) {
  std::istringstream accepted{std::string(word.accepted)};
  for (std::string one; accepted >> one;)
    if (say_the_same(one, lower_case(std::string(value)))) return true;
  return false;
}

std::string spelling_here(std::string_view flag) {
  const auto* word = find_foreign_word(Place::run, flag);
  if (!word) return "";
  return (word->follow == Follow::ignored ? "nothing: " : "") + std::string(word->text);
}

std::vector<std::string> foreign_variables(const Description& option) {
  std::vector<std::string> names;
  for (const auto& word : foreign_words(Place::variable))
    if (word.follow == Follow::option && option.is_named(word.text)) names.emplace_back(word.word);
  return names;
}

}  // namespace muster::options
