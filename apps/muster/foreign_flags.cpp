#include "foreign_flags.h"

#include <algorithm>

namespace muster::cli {
namespace {

struct Spelling {
  const char* theirs;  ///< with underscores, without dashes before it
  const char* ours;
};

constexpr Spelling kSpellings[] = {
    // torchrun
    {"nproc_per_node", "--devices"},
    {"nnodes", "--nodes"},
    {"master_addr", "--main-address"},
    {"master_port", "--main-port"},
    {"rdzv_endpoint", "--main-address and --main-port"},
    {"rdzv_backend", "nothing: ranks meet at --main-address"},
    {"rdzv_id", "nothing: a job is known by its address and secret"},
    {"rdzv_conf", "--timeout"},
    {"standalone", "nothing: one node is the default"},
    {"max_restarts", "nothing: a job that fails is started again from its last checkpoint by hand"},
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

/// "--log-dir=x" as "log_dir".
std::string name_in(const std::string& flag) {
  auto name = flag.substr(0, flag.find('='));
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string name_of(const std::string& flag) {
  auto name = flag.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const options::Description* option_of(const std::string& word, const std::vector<options::Description>& known) {
  if (!word.starts_with("--")) return nullptr;
  auto name = name_in(word);
  for (const auto& option : known) {
    const bool negated = option.is_switch && name == "no_" + name_of(option.flag());
    if (option.code_only) continue;
    if (negated || name == name_of(option.flag()) ||
        std::find(option.aliases.begin(), option.aliases.end(), name) != option.aliases.end())
      return &option;
  }
  return nullptr;
}

bool places_ranks(const options::Description& option) {
  static const char* const names[] = {"devices", "main_address", "main_port", "node_rank", "nodes"};
  return std::find(std::begin(names), std::end(names), option.name) != std::end(names);
}

}  // namespace

std::string spelling_of(const std::string& flag) {
  for (const auto& [theirs, ours] : kSpellings)
    if (name_in(flag) == theirs) return ours;
  return "";
}

Split split_command(const Arguments& command, bool bare, const std::vector<options::Description>& known) {
  Split split;
  split.program = command;
  if (command.empty()) return split;
  bool all = bare && command.size() > 1, one_places = false;
  for (auto word = command.begin() + 1; word != command.end(); ++word) {
    const auto* option = option_of(*word, known);
    const bool complete = option && (option->is_switch || word->find('=') != std::string::npos);
    all = all && complete;
    one_places = one_places || (option && places_ranks(*option));
    if (option) split.look_ours.push_back(*word);
  }
  if (!all || !one_places) return split;
  split.ours = {command.begin() + 1, command.end()};
  split.program.resize(1);
  split.look_ours.clear();
  return split;
}

}  // namespace muster::cli
