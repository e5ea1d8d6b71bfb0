#include <algorithm>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;
using nlohmann::json;

std::string config_file(const Environment& variables, const char* name) {
  return variables.find("SAGEMAKER_BASE_DIR").value_or("/opt/ml") + "/input/config/" + name;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

[[noreturn]] void refuse_hosts(const std::string& source, const std::string& reason) {
  throw ConfigError("MU494", str("the hosts of this SageMaker job in ", source, " ", reason,
                                 "; start the program by muster run with --nodes, --node-rank and --main-address, or "
                                 "unset TRAINING_JOB_ARN and SM_CURRENT_HOST to run alone"));
}

/// Orders SageMaker's container names algo-1, algo-2, ... by number, so that algo-10 follows algo-9.
bool by_number(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

SageMakerHosts hosts_of(const json& names, const std::string& current, const std::string& source) {
  SageMakerHosts hosts{.source = source};
  if (!names.is_array() || !std::all_of(names.begin(), names.end(), [](const json& one) { return one.is_string(); }))
    refuse_hosts(source, "are not a list of names");
  hosts.names = names.get<std::vector<std::string>>();
  std::sort(hosts.names.begin(), hosts.names.end(), by_number);
  const auto here = std::find(hosts.names.begin(), hosts.names.end(), current);
  if (here == hosts.names.end()) refuse_hosts(source, "do not include this one, '" + current + "'");
  hosts.current = static_cast<int>(here - hosts.names.begin());
  return hosts;
}

/// Whether the JSON object has this key with a value other than off.
bool is_on(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return false;
  const auto& value = object.at(key);
  const auto text = value.is_string() ? value.get<std::string>() : value.dump();
  return text != "false" && text != "null" && text != "{}" && !text.empty();
}

[[noreturn]] void refuse_library(const std::string& source, const char* library, const char* instead) {
  throw ConfigError("MU492", str(source, " asks for ", library,
                                 ", which Muster does not use; take it out of the job's configuration, start the "
                                 "program by muster run, and use ",
                                 instead));
}

constexpr const char* kDataParallel = "smddp (SageMaker's data parallel library, DATA_PARALLEL)";
constexpr const char* kModelParallel = "SageMaker's model parallel library (MODEL_PARALLEL)";
constexpr const char* kInsteadOfData = "--strategy ddp";
constexpr const char* kInsteadOfModel = "--strategy fsdp";

void refuse_in(const json& parameters, const std::string& source) {
  if (is_on(parameters, "sagemaker_distributed_dataparallel_enabled"))
    refuse_library(source, kDataParallel, kInsteadOfData);
  if (is_on(parameters, "mp_parameters")) refuse_library(source, kModelParallel, kInsteadOfModel);
}

json parsed(const std::string& text) { return json::parse(text, nullptr, /*allow_exceptions=*/false); }

}  // namespace

bool in_sagemaker(const Environment& variables) {
  return variables.has("SM_CURRENT_HOST") || variables.has("TRAINING_JOB_ARN");
}

void refuse_sagemaker_libraries(const Environment& variables) {
  constexpr const char* kAccelerate = "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE";
  const auto type = variables.find(kAccelerate).value_or("");
  if (type == "DATA_PARALLEL") refuse_library(str(kAccelerate, "=", type), kDataParallel, kInsteadOfData);
  if (type == "MODEL_PARALLEL") refuse_library(str(kAccelerate, "=", type), kModelParallel, kInsteadOfModel);
  if (variables.has("SM_HP_MP_PARAMETERS"))
    refuse_library("variable SM_HP_MP_PARAMETERS", kModelParallel, kInsteadOfModel);
  for (const auto* name : {"SM_FRAMEWORK_PARAMS", "SM_HPS"})
    if (auto text = variables.find(name)) refuse_in(parsed(*text), str("variable ", name));
  if (!in_sagemaker(variables)) return;
  const auto file = config_file(variables, "hyperparameters.json");
  refuse_in(parsed(contents(file)), file);
}

SageMakerHosts read_sagemaker_hosts(const Environment& variables) {
  const auto list = variables.find("SM_HOSTS"), current = variables.find("SM_CURRENT_HOST");
  if (list && current) return hosts_of(parsed(*list), *current, "SM_HOSTS");
  const auto file = config_file(variables, "resourceconfig.json");
  const auto config = parsed(contents(file));
  if (!config.is_object() || !config.contains("hosts") || !config.value("current_host", json()).is_string())
    refuse_hosts(file, "cannot be read: 'hosts' and 'current_host' are wanted");
  return hosts_of(config.at("hosts"), config.at("current_host").get<std::string>(), file);
}

ClusterEnvironment read_sagemaker(const Environment& variables) {
  const auto hosts = read_sagemaker_hosts(variables);
  ClusterEnvironment cluster;
  // A single container: its program may start ranks itself.
  if (hosts.names.size() == 1) return cluster;
  cluster.launcher = LauncherKind::sagemaker;
  cluster.rank = cluster.node_rank = hosts.current;
  cluster.world_size = cluster.nodes = static_cast<int>(hosts.names.size());
  cluster.job = variables.find("TRAINING_JOB_NAME").value_or("sagemaker");
  cluster.store_prefix = "muster/0";
  const int accelerators = read_number(variables, "SM_NUM_GPUS").value_or(0);
  if (accelerators > 1)
    cluster.note = str("SM_NUM_GPUS is ", accelerators,
                       ", but one rank runs in this container; start the program by muster run for a rank on each");
  if (read_main_address(variables, kDefaultPort, cluster)) return cluster;
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = hosts.names.front();
  cluster.main_port = kDefaultPort;
  return cluster;
}

}  // namespace muster::cluster
