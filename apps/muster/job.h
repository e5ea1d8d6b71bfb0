#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace muster::cli {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// A job for a cluster, as the flags of `muster submit` describe it.
struct Job {
  std::string account = {};
  std::string checkpoints = {};  ///< SageMaker: where the files of /opt/ml/checkpoints are kept
  int cpus = 0;                  ///< cores of each rank; 0: not said
  int devices = 1;               ///< ranks on each node
  Pairs environment = {};
  int gpus = 0;  ///< accelerators of each node
  std::string image = {};
  Pairs inputs = {};  ///< SageMaker: channel and where its data is
  std::string instance_type = {};
  std::string kube_namespace = {};
  std::string memory = {};  ///< of each node: a number and K, M, G or T; empty: not said
  Pairs metrics = {};       ///< SageMaker: name and regular expression
  std::string name = {};
  int nodes = 1;
  std::string output = {};  ///< SageMaker: where the results go
  std::string partition = {};
  std::vector<std::string> program = {};  ///< and its arguments
  std::string qos = {};
  std::string region = {};
  bool requeue = true;
  int restarts = 3;
  std::string role = {};
  std::vector<std::string> sbatch = {};  ///< further options of sbatch
  std::vector<std::string> setup = {};   ///< lines of shell before the program
  std::chrono::seconds signal_before{120};
  bool spot = false;
  std::chrono::seconds time{0};  ///< 0: not said
  Pairs volumes = {};            ///< Kubernetes: claim and path
  int volume_size = 30;          ///< SageMaker: GB of each instance
};

/// A batch script for sbatch.
std::string slurm_script(const Job& job);

/// YAML: an Indexed Job of a pod on each node, and the headless Service by which they find each other.
std::string kubernetes_manifest(const Job& job);
/// YAML: the Secret that the Job names, with a new secret.
std::string kubernetes_secret(const Job& job);

/// JSON: a request CreateTrainingJob.
std::string sagemaker_request(const Job& job);

/// Throws: UsageError (MU491), naming flag and value, for what the cluster would refuse.
void check_slurm(const Job& job);
void check_kubernetes(const Job& job);
void check_sagemaker(const Job& job);
[[noreturn]] void refuse_flag_value(const std::string& flag, const std::string& reason);

/// Lower case letters, digits and '-' of the text, at most `longest`; "job" if there are none.
std::string label_of(const std::string& text, std::size_t longest);

}  // namespace muster::cli
