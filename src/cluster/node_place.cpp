
#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;

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

NodePlace read_container_of_sagemaker(const Environment& variables) {
  const auto hosts = read_sagemaker_hosts(variables);
  return {.main_address = hosts.names.front(),
          .node_rank = hosts.current,
          .nodes = static_cast<int>(hosts.names.size()),
          .source = hosts.source};
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
