#include <algorithm>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/text.h"
#include "commands.h"
#include "hand_in.h"
#include "job.h"
#include "muster/base/detail/options.h"
#include "muster/base/error.h"
#include "parse.h"
#include "shell_word.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

struct SubmitFlags {
  std::vector<std::string> environment, inputs, metrics, volumes;
  Job job;
  std::string out;
  bool submit = false;
  std::string time, signal_before;
};

struct Cluster {
  const char* name;
  const char* help;
  void (*add_flags)(CLI::App& app, SubmitFlags& flags);
  void (*check)(const Job& job);
  std::string (*text)(const Job& job);
  void (*hand_over)(const SubmitFlags& flags, const std::string& text);
};

void add_flags_of_all(CLI::App& app, SubmitFlags& flags) {
  auto& job = flags.job;
  app.add_option("--name", job.name, "name of the job [the program's]");
  app.add_option("--nodes", job.nodes, "nodes [1]")->check(CLI::Range(1, 100000));
  app.add_option("--devices", job.devices, "ranks on each node [its accelerators, or 1]")->check(CLI::Range(1, 1024));
  app.add_option("--time", flags.time, "longest run: a duration such as 12h, or DD:HH:MM:SS");
  app.add_option("--env", flags.environment, "variable of the program, NAME=VALUE; may be repeated");
  app.add_option("--out", flags.out, "file to write, which must not be there yet [standard output]");
}

void add_node_flags(CLI::App& app, SubmitFlags& flags) {
  auto& job = flags.job;
  app.add_option("--gpus", job.gpus, "accelerators of each node [0]")->check(CLI::Range(0, 1024));
  app.add_option("--cpus", job.cpus, "cores of each rank")->check(CLI::Range(1, 4096));
  app.add_option("--memory", job.memory, "memory of each node: a number with K, M, G or T");
}

void add_slurm_flags(CLI::App& app, SubmitFlags& flags) {
  auto& job = flags.job;
  add_node_flags(app, flags);
  app.add_option("--partition", job.partition, "partition of the cluster");
  app.add_option("--account", job.account, "account that pays");
  app.add_option("--qos", job.qos, "quality of service");
  app.add_option("--signal-before,--signal_before", flags.signal_before,
                 "SIGUSR1 comes so long before the time limit [120s]");
  app.add_flag("--requeue,!--no-requeue,!--no_requeue", job.requeue,
               "queue the job again after its limit [true]; --no-requeue sends no signal either")
      ->default_str("true");
  app.add_option("--setup", job.setup,
                 "a line of shell before the program, such as 'module load cuda'; may be repeated");
  app.add_option("--sbatch", job.sbatch, "another option of sbatch, as --sbatch=--exclusive; may be repeated");
  app.add_flag("--submit,!--no-submit,!--no_submit", flags.submit, "hand the job in by sbatch");
}

void add_kubernetes_flags(CLI::App& app, SubmitFlags& flags) {
  auto& job = flags.job;
  add_node_flags(app, flags);
  app.add_option("--image", job.image, "container image with the program and muster");
  app.add_option("--namespace", job.kube_namespace, "namespace of the cluster");
  app.add_option("--restarts", job.restarts, "how often the world may start again [3]")->check(CLI::Range(0, 1000));
  app.add_option("--signal-before,--signal_before", flags.signal_before, "from SIGTERM until a pod is killed [120s]");
  app.add_option("--volume", flags.volumes, "volume claim and where it is mounted, CLAIM=/PATH; may be repeated");
  app.add_flag("--submit,!--no-submit,!--no_submit", flags.submit, "hand the job in by kubectl, with a new secret");
}

void add_sagemaker_flags(CLI::App& app, SubmitFlags& flags) {
  auto& job = flags.job;
  app.add_option("--image", job.image, "image in ECR with the program and muster");
  app.add_option("--role", job.role, "ARN of the execution role");
  app.add_option("--instance-type,--instance_type", job.instance_type, "such as ml.p4d.24xlarge");
  app.add_option("--output", job.output, "where results go, s3://BUCKET/FOLDER");
  app.add_option("--input", flags.inputs, "data as /opt/ml/input/data/NAME, NAME=s3://BUCKET/FOLDER; may be repeated");
  app.add_option("--checkpoints", job.checkpoints, "where /opt/ml/checkpoints is kept, s3://BUCKET/FOLDER");
  app.add_option("--metric", flags.metrics, "value to read from the output, NAME=REGEX; may be repeated");
  app.add_option("--restarts", job.restarts, "attempts after errors of the service [3]")->check(CLI::Range(0, 30));
  app.add_option("--volume-size,--volume_size", job.volume_size, "GB of each instance [30]")
      ->check(CLI::Range(1, 16384));
  app.add_option("--region", job.region, "region of the printed command");
  app.add_flag("--spot,!--no-spot,!--no_spot", job.spot, "take spare instances, which may be taken back");
  app.add_flag("--submit,!--no-submit,!--no_submit", flags.submit,
               "write the request to NAME.json and print the command that hands it in");
}

void to_sbatch(const SubmitFlags&, const std::string& text) { hand_in("sbatch", text); }

void to_kubectl(const SubmitFlags& flags, const std::string& text) {
  hand_in("kubectl create -f -", (flags.job.nodes > 1 ? kubernetes_secret(flags.job) : "") + text);
}

void print_aws_command(const SubmitFlags& flags, const std::string&) {
  const auto& region = flags.job.region;
  std::printf("aws sagemaker create-training-job --cli-input-json %s%s\n", shell_word("file://" + flags.out).c_str(),
              region.empty() ? "" : (" --region " + shell_word(region)).c_str());
}

constexpr Cluster kClusters[] = {
    {"slurm", "Writes a batch script for SLURM's sbatch.", add_slurm_flags, check_slurm, slurm_script, to_sbatch},
    {"kubernetes", "Writes an Indexed Job for Kubernetes, and a headless Service.", add_kubernetes_flags,
     check_kubernetes, kubernetes_manifest, to_kubectl},
    {"sagemaker", "Writes a request CreateTrainingJob for Amazon SageMaker.", add_sagemaker_flags, check_sagemaker,
     sagemaker_request, print_aws_command},
};

void declare(CLI::App& app, const Cluster& cluster, SubmitFlags& flags) {
  add_flags_of_all(app, flags);
  cluster.add_flags(app, flags);
}

/// The help of a flag, and the clusters that it applies to.
struct Meaning {
  std::string help;
  std::vector<std::string> clusters;
};

void add_meaning(std::vector<Meaning>& meanings, const std::string& help, const char* cluster) {
  for (auto& one : meanings)
    if (one.help == help) return one.clusters.emplace_back(cluster), void();
  meanings.push_back({help, {cluster}});
}

std::string help_of(const std::vector<Meaning>& meanings) {
  if (meanings.front().clusters.size() == std::size(kClusters)) return meanings.front().help;
  std::string text;
  for (const auto& one : meanings) text += (text.empty() ? "" : "; ") + joined(one.clusters) + ": " + one.help;
  return text;
}

const Cluster& find_cluster(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& cluster : kClusters) {
    if (name == cluster.name) return cluster;
    known.emplace_back(cluster.name);
  }
  throw UsageError("MU490", "muster submit knows no cluster '" + name + "'" + known_names(name, known));
}

Pairs pairs_of(const std::string& flag, const std::vector<std::string>& texts) {
  Pairs pairs;
  for (const auto& text : texts) {
    const auto equals = text.find('=');
    if (equals == 0 || equals == std::string::npos)
      refuse_flag_value(flag, "'" + text + "' has no name and value; write NAME=VALUE");
    pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

void read_duration(const std::string& flag, const std::string& text, std::chrono::seconds& seconds) {
  if (text.empty()) return;
  std::chrono::milliseconds time{0};
  // A number without a unit means minutes to sbatch, and seconds elsewhere.
  const bool has_unit = text.find_first_not_of("0123456789.") != std::string::npos;
  if (!has_unit || !options::Value<std::chrono::milliseconds>::read(text, time).empty())
    refuse_flag_value(flag, "'" + text + "' is not a time; write 90min, 12h, or DD:HH:MM:SS");
  seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  if (seconds.count() < 1) refuse_flag_value(flag, "'" + text + "' is less than a second");
}

void check_memory(const std::string& text) {
  if (text.empty()) return;
  const bool digits =
      text.size() > 1 && std::all_of(text.begin(), text.end() - 1, [](unsigned char c) { return std::isdigit(c); });
  if (!digits || text.front() == '0' || std::string_view("KMGT").find(text.back()) == std::string_view::npos)
    refuse_flag_value("--memory", "'" + text + "' is not an amount; write a number with K, M, G or T, such as 64G");
}

void check_environment(const Pairs& environment) {
  for (const auto& [name, value] : environment)
    if (std::isdigit(static_cast<unsigned char>(name.front())) ||
        !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      refuse_flag_value("--env", "'" + name + "' is not a valid name for a variable");
}

/// A default name; SageMaker does not allow a job name to be reused.
std::string default_name(const Cluster& cluster, const std::string& program) {
  const auto label = label_of(fs::path(program).stem().string(), 40);
  if (cluster.text != sagemaker_request) return label;
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "-%Y%m%d-%H%M%S", &parts);
  return label + text;
}

void complete(const Cluster& cluster, const CLI::App& app, SubmitFlags& flags) {
  auto& job = flags.job;
  job.program = app.remaining();
  if (!job.program.empty() && job.program.front() == "--") job.program.erase(job.program.begin());
  if (job.program.empty() || job.program.front().empty())
    refuse_flag_value("PROGRAM",
                      std::string("is missing: muster submit ") + cluster.name + " [OPTIONS] PROGRAM [ARGUMENTS]");
  if (job.program.front().starts_with("-"))
    throw UsageError("MU006", "muster submit " + std::string(cluster.name) + " knows no flag '" + job.program.front() +
                                  "'; flags of the program stand after its name (see --help)");
  if (app.count("--devices") == 0) job.devices = std::max(job.gpus, 1);
  if (job.name.empty()) job.name = default_name(cluster, job.program.front());
  if (job.name.find('\n') != std::string::npos) refuse_flag_value("--name", "has a line break");
  job.environment = pairs_of("--env", flags.environment);
  job.inputs = pairs_of("--input", flags.inputs);
  job.metrics = pairs_of("--metric", flags.metrics);
  job.volumes = pairs_of("--volume", flags.volumes);
  read_duration("--time", flags.time, job.time);
  read_duration("--signal-before", flags.signal_before, job.signal_before);
  check_memory(job.memory);
  check_environment(job.environment);
}

void write_file(const std::string& path, const std::string& text) {
  std::error_code error;
  if (fs::exists(path, error))
    throw UsageError("MU495", path + " is there already; give another --out, or remove it first");
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw UsageError("MU495", "cannot write " + path + "; check its folder, permissions and disk");
}

bool parse_submit(CLI::App& app, const Arguments& arguments) {
  app.prefix_command();
  for (auto* option : app.get_options([](const CLI::Option* one) { return one->get_items_expected_max() == 1; }))
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const auto* name : {"--env", "--input", "--metric", "--sbatch", "--setup", "--volume"})
    if (auto* option = app.get_option_no_throw(name))
      option->expected(1, 1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    print_help_with_program(app);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError("MU006", std::string(error.what()) + " (see " + app.get_name() + " --help)");
  }
  return true;
}

void print_usage() {
  std::puts(
      "muster submit CLUSTER [OPTIONS] PROGRAM [ARGUMENTS]\n\n"
      "Writes the job that starts a program on a cluster; --submit hands it in.\n\nClusters (each takes --help):");
  for (const auto& cluster : kClusters) std::printf("  %-12s %s\n", cluster.name, cluster.help);
}

}  // namespace

void refuse_flag_value(const std::string& flag, const std::string& reason) {
  throw UsageError("MU491", flag + (reason.starts_with("'") ? ": " : " ") + reason);
}

std::string label_of(const std::string& text, std::size_t longest) {
  std::string label;
  for (const unsigned char c : text) {
    if (std::isalpha(c) || (std::isdigit(c) && !label.empty())) label += static_cast<char>(std::tolower(c));
    else if (!label.empty() && label.back() != '-' && !std::isdigit(c)) label += '-';
  }
  label = label.substr(0, longest);
  while (!label.empty() && label.back() == '-') label.pop_back();
  return label.empty() ? "job" : label;
}

std::vector<options::Description> submit_flags() {
  std::vector<options::Description> flags;
  std::map<std::string, std::vector<Meaning>> meanings;
  for (const auto& cluster : kClusters) {
    CLI::App app;
    SubmitFlags call;
    declare(app, cluster, call);
    for (auto& flag : described(app)) {
      auto& of_flag = meanings[flag.name];
      add_meaning(of_flag, flag.help, cluster.name);
      if (of_flag.size() == 1 && of_flag.front().clusters.size() == 1) flags.push_back(std::move(flag));
    }
  }
  for (auto& flag : flags) flag.help = help_of(meanings[flag.name]);
  return flags;
}

int submit(const Arguments& arguments) {
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h") {
    print_usage();
    return arguments.empty() ? 2 : 0;
  }
  const auto& cluster = find_cluster(arguments.front());
  CLI::App app(cluster.help, "muster submit " + std::string(cluster.name));
  SubmitFlags flags;
  declare(app, cluster, flags);
  if (!parse_submit(app, {arguments.begin() + 1, arguments.end()})) return 0;
  complete(cluster, app, flags);
  cluster.check(flags.job);
  const auto text = cluster.text(flags.job);
  if (flags.submit && flags.out.empty() && cluster.hand_over == print_aws_command) flags.out = flags.job.name + ".json";
  if (!flags.out.empty()) write_file(flags.out, text);
  if (flags.submit) cluster.hand_over(flags, text);
  else if (flags.out.empty()) std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace muster::cli
