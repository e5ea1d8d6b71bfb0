#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace muster::cli {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Why: docs/decisions/0115-jobs-are-written-as-text.md.

/// A job for a cluster, described by the flags of `muster submit`.
struct Job {
  std::string account = {};
  std::string checkpoints = {};  ///< SageMaker: location for the files of /opt/ml/checkpoints
  int cpus = 0;                  ///< cores of each rank; 0: not given
  int devices = 1;               ///< ranks on each node
  Pairs environment = {};
  int gpus = 0;  ///< accelerators of each node
  std::string image = {};
  Pairs inputs = {};  ///< SageMaker: channels with the locations of their data
  std::string instance_type = {};
  std::string kube_namespace = {};
  std::string memory = {};  ///< memory of each node: a number and K, M, G or T; empty: not given
  Pairs metrics = {};       ///< SageMaker: names with regular expressions
  std::string name = {};
  int nodes = 1;
  std::string output = {};  ///< SageMaker: location of the results
  std::string partition = {};
  std::vector<std::string> program = {};  ///< program and its arguments
  std::string qos = {};
  std::string region = {};
  bool requeue = true;
  int restarts = 3;
  std::string role = {};
  std::vector<std::string> sbatch = {};  ///< additional options of sbatch
  std::vector<std::string> setup = {};   ///< shell lines before the program
  std::chrono::seconds signal_before{120};
  bool spot = false;
  std::chrono::seconds time{0};  ///< time limit; 0: not given
  Pairs volumes = {};            ///< Kubernetes: claims with paths
  int volume_size = 30;          ///< SageMaker: disk of each instance in GB
};

/// A batch script for sbatch, as text.
std::string slurm_script(const Job& job);

/// YAML: an Indexed Job with one pod on each node, and the headless Service through which the pods find each other.
std::string kubernetes_manifest(const Job& job);
/// YAML: the Secret that the Job names, with a new secret.
std::string kubernetes_secret(const Job& job);

/// JSON: a CreateTrainingJob request.
std::string sagemaker_request(const Job& job);

/// Throws: UsageError (MU491), with flag and value, for values that the cluster would refuse.
void check_slurm(const Job& job);
void check_kubernetes(const Job& job);
void check_sagemaker(const Job& job);
[[noreturn]] void refuse_flag_value(const std::string& flag, const std::string& reason);

/// The lowercase letters, digits and '-' of the text, at most `longest`; "job" if there are none.
std::string label_of(const std::string& text, std::size_t longest);

}  // namespace muster::cli
