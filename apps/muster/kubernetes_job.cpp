#include <nlohmann/json.hpp>

#include "cluster/secret.h"
#include "job.h"

namespace muster::cli {
namespace {

// Names of pods are host names: NAME-INDEX may have at most 63 characters.
constexpr std::size_t kLongestPodName = 57;
constexpr std::size_t kLongestNamespace = 63;  // length of a DNS label

/// The text in double quotes; YAML's escapes include those of JSON.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string metadata(const Job& job, const std::string& name) {
  return "metadata:\n  name: " + name + "\n" +
         (job.kube_namespace.empty() ? "" : "  namespace: " + job.kube_namespace + "\n");
}

std::string service(const Job& job) {
  return "apiVersion: v1\nkind: Service\n" + metadata(job, job.name) +
         "spec:\n  clusterIP: None  # each pod has a name of its own: " + job.name + "-0." + job.name + "\n" +
         "  publishNotReadyAddresses: true\n  selector:\n    job-name: " + job.name + "\n";
}

std::string variable(const std::string& name, const std::string& value) {
  return "        - name: " + name + "\n          value: " + quoted(value) + "\n";
}

std::string variables(const Job& job) {
  std::string text;
  for (const auto& [name, value] : job.environment) text += variable(name, value);
  if (job.nodes > 1) {
    text += variable("MUSTER_NODES", std::to_string(job.nodes)) +
            variable("MUSTER_MAIN_ADDRESS", job.name + "-0." + job.name) +
            "        - name: MUSTER_NODE_RANK\n          valueFrom:\n            fieldRef:\n"
            "              fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']\n"
            "        - name: MUSTER_SECRET\n          valueFrom:\n            secretKeyRef:\n              name: " +
            job.name + "-secret\n              key: secret\n";
  }
  return text.empty() ? "" : "        env:\n" + text;
}

std::string command(const Job& job) {
  std::string text = "        command: [muster, run, --devices, " + quoted(std::to_string(job.devices)) + ", --";
  for (const auto& word : job.program) text += ", " + quoted(word);
  return text + "]\n";
}

std::string pod_resources(const Job& job) {
  std::string text;
  if (job.cpus > 0) text += "            cpu: " + quoted(std::to_string(job.cpus * job.devices)) + "\n";
  // The flag's K, M, G and T are powers of 1024, as in SLURM.
  if (!job.memory.empty()) text += "            memory: " + job.memory + "i\n";
  if (job.gpus > 0) text += "            nvidia.com/gpu: " + quoted(std::to_string(job.gpus)) + "\n";
  if (text.empty()) return "";
  return "        resources:\n          requests:\n" + text + "          limits:\n" + text;
}

/// Mounts a larger /dev/shm for NCCL and other libraries; the default in a container is 64 MB. Muster uses
/// memfd_create.
std::string mounts(const Job& job) {
  std::string text = "        volumeMounts:\n        - name: shared-memory\n          mountPath: /dev/shm\n";
  for (std::size_t i = 0; i < job.volumes.size(); ++i)
    text += "        - name: volume-" + std::to_string(i) + "\n          mountPath: " + quoted(job.volumes[i].second) +
            "\n";
  return text;
}

std::string volumes(const Job& job) {
  std::string text = "      volumes:\n      - name: shared-memory\n        emptyDir:\n          medium: Memory\n";
  for (std::size_t i = 0; i < job.volumes.size(); ++i)
    text += "      - name: volume-" + std::to_string(i) +
            "\n        persistentVolumeClaim:\n          claimName: " + quoted(job.volumes[i].first) + "\n";
  return text;
}

std::string pod(const Job& job) {
  return "    spec:\n      subdomain: " + job.name +
         "\n      restartPolicy: Never\n      terminationGracePeriodSeconds: " +
         std::to_string(job.signal_before.count()) +
         "\n      containers:\n      - name: train\n        image: " + quoted(job.image) + "\n" + command(job) +
         variables(job) + pod_resources(job) + mounts(job) + volumes(job);
}

/// The limit on failures. A failing pod takes the others with it, so each start of the world may cost one failure per
/// node. Evicted and preempted pods do not count.
std::string limits(const Job& job) {
  std::string text = "  completionMode: Indexed\n  completions: " + std::to_string(job.nodes) +
                     "\n  parallelism: " + std::to_string(job.nodes) +
                     "\n  backoffLimit: " + std::to_string(job.restarts * job.nodes) + "\n";
  if (job.time.count() > 0) text += "  activeDeadlineSeconds: " + std::to_string(job.time.count()) + "\n";
  return text +
         "  podFailurePolicy:\n    rules:\n    - action: Ignore\n      onPodConditions:\n"
         "      - type: DisruptionTarget\n        status: \"True\"\n";
}

bool is_label(const std::string& text, std::size_t longest) {
  return !text.empty() && text.size() <= longest && text.front() != '-' && text.back() != '-' &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

void check_names(const Job& job) {
  const auto wanted = [](const std::string& name, std::size_t longest) {
    return "'" + name + "' is not a valid name in Kubernetes; use at most " + std::to_string(longest) +
           " lower case letters, digits and '-'";
  };
  if (!is_label(job.name, kLongestPodName) || (job.name.front() >= '0' && job.name.front() <= '9'))
    refuse_flag_value("--name", wanted(job.name, kLongestPodName) + ", with a letter first");
  if (!job.kube_namespace.empty() && !is_label(job.kube_namespace, kLongestNamespace))
    refuse_flag_value("--namespace", wanted(job.kube_namespace, kLongestNamespace));
}

}  // namespace

void check_kubernetes(const Job& job) {
  check_names(job);
  if (job.image.empty())
    refuse_flag_value("--image", "is missing; name the container image with the program and muster");
  for (const auto& [claim, path] : job.volumes)
    if (!path.starts_with("/")) refuse_flag_value("--volume", "'" + claim + "=" + path + "' has no absolute path");
}

std::string kubernetes_secret(const Job& job) {
  return "apiVersion: v1\nkind: Secret\n" + metadata(job, job.name + "-secret") +
         "stringData:\n  secret: " + cluster::make_secret().reveal() + "\n---\n";
}

std::string kubernetes_manifest(const Job& job) {
  std::string text;
  const auto of = job.kube_namespace.empty() ? "" : " --namespace " + job.kube_namespace;
  if (job.nodes > 1)
    text =
        "# By this the ranks of the job authenticate each other (muster submit --submit makes it, too):\n"
        "#   kubectl create secret generic " +
        job.name + "-secret" + of + " --from-literal=secret=$(openssl rand -hex 32)\n" + service(job) + "---\n";
  return text + "apiVersion: batch/v1\nkind: Job\n" + metadata(job, job.name) + "spec:\n" + limits(job) +
         "  template:\n" + pod(job);
}

}  // namespace muster::cli
