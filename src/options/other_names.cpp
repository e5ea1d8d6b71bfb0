#include "options/other_names.h"

namespace muster::launcher {
namespace {

struct Spelling {
  const char* theirs;  ///< name in the other launcher, with underscores and without leading dashes
  const char* ours;
};

constexpr Spelling kSpellings[] = {
    // torchrun
    {"nproc_per_node", "--devices"},
    {"nnodes", "--nodes"},
    {"master_addr", "--main-address"},
    {"master_port", "--main-port"},
    {"rdzv_endpoint", "--main-address and --main-port"},
    {"rdzv_backend", "nothing: ranks rendezvous at --main-address"},
    {"rdzv_id", "nothing: a job is known by its address and secret"},
    {"rdzv_conf", "--join-timeout, --last-call-timeout and --heartbeat-timeout; --timeout for ranks"},
    {"standalone", "nothing: one node is the default"},
    {"monitor_interval", "nothing: an end is noticed at once"},
    {"no_python", "nothing: the program is executed as it is"},
    {"log_line_prefix_template", "--prefix or --no-prefix"},
    {"redirects", "--log-dir"},
    {"tee", "--log-dir"},
    {"local_ranks_filter", "--log-dir"},
    // accelerate launch
    {"num_processes", "--devices"},
    {"num_machines", "--nodes"},
    {"machine_rank", "--node-rank"},
    {"main_process_ip", "--main-address"},
    {"main_process_port", "--main-port"},
    {"main_training_function", "nothing: main() is executed"},
    {"gpu_ids", "--devices, such as 0,2"},
    {"multi_gpu", "--devices and --strategy ddp"},
    {"cpu", "--accelerator cpu"},
    {"use_cpu", "--accelerator cpu"},
    {"num_cpu_threads_per_process", "--threads"},
    {"config_file", "--config"},
    {"use_fsdp", "--strategy fsdp"},
    {"use_deepspeed", "--strategy zero2"},
    {"zero_stage", "--strategy zero1, zero2 or zero3"},
    {"fsdp_sharding_strategy", "--fsdp sharding_strategy=..."},
    {"fsdp_auto_wrap_policy", "--fsdp auto_wrap_policy=..."},
    {"fsdp_transformer_layer_cls_to_wrap", "--fsdp-unit-classes"},
    {"fsdp_min_num_params", "--fsdp-unit-min-elements"},
    // fabric run
    {"main_process_address", "--main-address"},
    // mpirun, srun
    {"n", "--devices"},
    {"np", "--devices"},
    {"ntasks", "--devices"},
    {"ntasks_per_node", "--devices"},
    {"N", "--nodes"},
    {"host", "--nodes, --node-rank and --main-address on each node"},
    {"H", "--nodes, --node-rank and --main-address on each node"},
    {"hostfile", "--nodes, --node-rank and --main-address on each node"},
    {"x", "nothing: the environment is passed on"},
};

}  // namespace

std::string spelling_here(std::string_view name) {
  for (const auto& [theirs, ours] : kSpellings)
    if (name == theirs) return ours;
  return "";
}

}  // namespace muster::launcher
