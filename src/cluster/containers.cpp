#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/variables.h"
#include "cluster/reading.h"
#include "muster/base/error.h"

namespace muster::cluster {

using log::str;

// Pods of Kubernetes

namespace {

/// The only process on its node.
ClusterEnvironment one_of(int rank, int world_size) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::kubernetes;
  cluster.rank = cluster.node_rank = rank;
  cluster.world_size = cluster.nodes = world_size;
  cluster.job = "kubernetes";
  return cluster;
}

}  // namespace

ClusterEnvironment read_indexed_job(const Environment& variables) {
  auto cluster = one_of(need_number(variables, kCompletionIndex, kWorldSize),
                        need_number(variables, kWorldSize, kCompletionIndex, 1));
  check_ranks(cluster, {kCompletionIndex, kWorldSize, kLocalRank, kLocalWorldSize});
  if (cluster.world_size > 1 && !read_main_address(variables, kDefaultPort, cluster))
    throw ConfigError("MU024", str(kCompletionIndex, " is ", cluster.rank, " and WORLD_SIZE ", cluster.world_size,
                                   ", but MASTER_ADDR is not set; set it to the host of the pod with index 0, such as "
                                   "train-0.train (muster submit kubernetes writes such a job)"));
  return cluster;
}

ClusterEnvironment read_kubeflow(const Environment& variables) {
  if (const auto ranks = variables.find("PET_NPROC_PER_NODE").value_or("1"); ranks != "1")
    throw ConfigError("MU493", str("PET_NPROC_PER_NODE is ", ranks,
                                   ", but this process was started by itself; start the program by muster run, which "
                                   "reads the PET_ variables and starts the ranks of this pod"));
  const auto place = *find_node_place(variables);
  // A single pod: its program may start ranks itself.
  if (place.nodes == 1) return {};
  if (!place.node_rank)
    throw ConfigError("MU020",
                      "variable PET_NNODES is set, but neither PET_NODE_RANK nor JOB_COMPLETION_INDEX is; "
                      "set PET_NODE_RANK to the number of this pod, from 0");
  auto cluster = one_of(*place.node_rank, *place.nodes);
  check_ranks(cluster, {"PET_NODE_RANK", "PET_NNODES", kLocalRank, kLocalWorldSize});
  if (place.main_address.empty())
    throw ConfigError("MU024", str("PET_NNODES is ", cluster.nodes,
                                   ", but neither PET_MASTER_ADDR nor PET_RDZV_ENDPOINT is set; set PET_MASTER_ADDR "
                                   "to the host of the first pod, and PET_MASTER_PORT"));
  use_tcp_rendezvous(place.main_address, place.main_port == 0 ? kDefaultPort : place.main_port, cluster);
  return cluster;
}

// Containers of SageMaker

namespace {

using nlohmann::json;

std::string config_file(const Environment& variables, const char* name) {
  return variables.find("SAGEMAKER_BASE_DIR").value_or("/opt/ml") + "/input/config/" + name;
}

[[noreturn]] void refuse_hosts(const std::string& source, const std::string& reason) {
  throw ConfigError("MU494", str("the hosts of this SageMaker job in ", source, " ", reason,
                                 "; start the program by muster run with --nodes, --node-rank and --main-address, or "
                                 "unset TRAINING_JOB_ARN and SM_CURRENT_HOST to run alone"));
}

NodePlace place_among(const json& names, const std::string& current, const std::string& source) {
  if (!names.is_array() || !std::all_of(names.begin(), names.end(), [](const json& one) { return one.is_string(); }))
    refuse_hosts(source, "are not a list of names");
  auto hosts = names.get<std::vector<std::string>>();
  // The names are algo-1, algo-2, ...: algo-10 follows algo-9.
  std::sort(hosts.begin(), hosts.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  const auto here = std::find(hosts.begin(), hosts.end(), current);
  if (here == hosts.end()) refuse_hosts(source, "do not include this one, '" + current + "'");
  return {.main_address = hosts.front(),
          .node_rank = static_cast<int>(here - hosts.begin()),
          .nodes = static_cast<int>(hosts.size()),
          .source = source};
}

/// Whether the JSON object has this key with a value other than off.
bool is_on(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return false;
  const auto& value = object.at(key);
  const auto text = value.is_string() ? value.get<std::string>() : value.dump();
  return text != "false" && text != "null" && text != "{}" && !text.empty();
}

/// A library of SageMaker for distributed training, and what replaces it.
struct Library {
  const char* name;
  const char* instead;
};
constexpr Library kDataParallel{"smddp (SageMaker's data parallel library, DATA_PARALLEL)", "--strategy ddp"};
constexpr Library kModelParallel{"SageMaker's model parallel library (MODEL_PARALLEL)", "--strategy fsdp"};

[[noreturn]] void refuse_library(const std::string& source, const Library& library) {
  throw ConfigError("MU492", str(source, " asks for ", library.name,
                                 ", which Muster does not use; take it out of the job's configuration, start the "
                                 "program by muster run, and use ",
                                 library.instead));
}

void refuse_in(const json& parameters, const std::string& source) {
  if (is_on(parameters, "sagemaker_distributed_dataparallel_enabled")) refuse_library(source, kDataParallel);
  if (is_on(parameters, "mp_parameters")) refuse_library(source, kModelParallel);
}

json parsed(const std::string& text) { return json::parse(text, nullptr, /*allow_exceptions=*/false); }
json parsed_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();  // takes what cannot be read, such as a folder, for an empty text
  return parsed(text.str());
}

/// Reads SM_HOSTS and SM_CURRENT_HOST, which SageMaker's toolkit sets, otherwise input/config/resourceconfig.json in
/// SAGEMAKER_BASE_DIR (or /opt/ml), which every container has.
/// Throws: ConfigError (MU494) if they cannot be read or are contradictory.
NodePlace read_container_of_sagemaker(const Environment& variables) {
  const auto list = variables.find("SM_HOSTS"), current = variables.find("SM_CURRENT_HOST");
  if (list && current) return place_among(parsed(*list), *current, "SM_HOSTS");
  const auto file = config_file(variables, "resourceconfig.json");
  const auto config = parsed_file(file);
  if (!config.is_object() || !config.contains("hosts") || !config.value("current_host", json()).is_string())
    refuse_hosts(file, "cannot be read: 'hosts' and 'current_host' are wanted");
  return place_among(config.at("hosts"), config.at("current_host").get<std::string>(), file);
}

}  // namespace

bool in_sagemaker(const Environment& variables) {
  return variables.has("SM_CURRENT_HOST") || variables.has("TRAINING_JOB_ARN");
}

void refuse_sagemaker_libraries(const Environment& variables) {
  constexpr const char* kAccelerate = "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE";
  const auto type = variables.find(kAccelerate).value_or("");
  if (type == "DATA_PARALLEL") refuse_library(str(kAccelerate, "=", type), kDataParallel);
  if (type == "MODEL_PARALLEL") refuse_library(str(kAccelerate, "=", type), kModelParallel);
  if (variables.has("SM_HP_MP_PARAMETERS")) refuse_library("variable SM_HP_MP_PARAMETERS", kModelParallel);
  for (const auto* name : {"SM_FRAMEWORK_PARAMS", "SM_HPS"})
    if (auto text = variables.find(name)) refuse_in(parsed(*text), str("variable ", name));
  if (!in_sagemaker(variables)) return;
  const auto file = config_file(variables, "hyperparameters.json");
  refuse_in(parsed_file(file), file);
}

ClusterEnvironment read_sagemaker(const Environment& variables) {
  const auto place = read_container_of_sagemaker(variables);
  // A single container: its program may start ranks itself.
  if (place.nodes == 1) return {};
  auto cluster = one_of(*place.node_rank, *place.nodes);
  cluster.launcher = LauncherKind::sagemaker;
  cluster.job = variables.find("TRAINING_JOB_NAME").value_or("sagemaker");
  const int accelerators = read_number(variables, "SM_NUM_GPUS").value_or(0);
  if (accelerators > 1)
    cluster.note = str("SM_NUM_GPUS is ", accelerators,
                       ", but one rank runs in this container; start the program by muster run for a rank on each");
  if (!read_main_address(variables, kDefaultPort, cluster))
    use_tcp_rendezvous(place.main_address, kDefaultPort, cluster);
  return cluster;
}

// The place of this node, for a launcher that runs once on each

namespace {

/// torchrun's number of nodes: "4", or "4:4".
int read_node_count(const Environment& variables) {
  const auto text = *variables.find("PET_NNODES");
  const auto colon = text.find(':');
  if (colon == std::string::npos) return *read_number(variables, "PET_NNODES", 1);
  if (text.substr(0, colon) == text.substr(colon + 1))
    return *read_number(Environment{{"PET_NNODES", text.substr(0, colon)}}, "PET_NNODES", 1);
  throw ConfigError("MU021", str("variable PET_NNODES is '", text,
                                 "', but one number of nodes is wanted; set minimum and maximum to the same"));
}

void read_endpoint(const Environment& variables, NodePlace& place) {
  place.main_port = read_number(variables, "PET_MASTER_PORT", 1, 65535).value_or(0);
  if (auto address = variables.find("PET_MASTER_ADDR")) {
    place.main_address = *address;
    return;
  }
  const auto endpoint = variables.find("PET_RDZV_ENDPOINT").value_or("");
  const auto colon = endpoint.rfind(':');
  place.main_address = endpoint.substr(0, colon);
  if (colon != std::string::npos)
    place.main_port =
        read_number(Environment{{"PET_RDZV_ENDPOINT", endpoint.substr(colon + 1)}}, "PET_RDZV_ENDPOINT", 1, 65535)
            .value_or(0);
}

NodePlace read_pod_of_kubeflow(const Environment& variables) {
  NodePlace place{.nodes = read_node_count(variables), .source = "PET_NNODES"};
  const auto ranks = variables.find("PET_NPROC_PER_NODE").value_or("");
  const bool count =
      !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (count || ranks == "auto") place.devices = ranks;
  place.node_rank = read_number(variables, "PET_NODE_RANK");
  if (!place.node_rank) place.node_rank = read_number(variables, kCompletionIndex);
  read_endpoint(variables, place);
  return place;
}

/// Reads a task of srun or pbsdsh with one task per node; `number` names the variable with the node's number.
NodePlace read_node_of_task(const Environment& variables, const char* number) {
  const auto first = first_host_of_job(variables);
  return {.main_address = first ? first->host : "",
          .main_port = first ? first->port : 0,
          .node_rank = read_number(variables, number),
          .source = number};
}

}  // namespace

std::optional<NodePlace> find_node_place(const Environment& variables) {
  if (variables.has("PET_NNODES")) return read_pod_of_kubeflow(variables);
  if (in_sagemaker(variables)) return read_container_of_sagemaker(variables);
  if (variables.has(kCompletionIndex))
    return NodePlace{.node_rank = read_number(variables, kCompletionIndex), .source = kCompletionIndex};
  if (find_slurm(variables) == SlurmPresence::task) return read_node_of_task(variables, "SLURM_NODEID");
  if (variables.has("PBS_NODENUM")) return read_node_of_task(variables, "PBS_NODENUM");
  return std::nullopt;
}

}  // namespace muster::cluster
