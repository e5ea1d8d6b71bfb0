#include "launcher/devices.h"

#include <sched.h>

#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/accelerator_name.h"
#include "base/log.h"
#include "base/run_program.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

using log::str;

/// Limit on ranks per core. A larger number is a typing error: each rank is a process with its own threads and sockets.
constexpr int kMostPerCore = 128;

[[noreturn]] void refuse(const DeviceRequest& request, const std::string& reason) {
  throw ConfigError("MU030", str(request.place, " is '", request.devices, "': ", reason));
}

int count_processes(const DeviceRequest& request) {
  if (request.devices == "auto") return 1;
  std::string where = request.accelerator == "cpu" ? "on the CPU" : "no accelerator was found, and on the CPU";
  const int count = parse_number<int>(request.devices).value_or(0);
  if (count < 1) refuse(request, where + " it must be a positive number of processes, or auto (1)");
  if (const int most = kMostPerCore * count_cores(); count > most)
    refuse(request, str("on ", count_cores(), " cores at most ", most, " processes are started"));
  return count;
}

std::vector<int> read_indices(const DeviceRequest& request) {
  std::vector<int> indices;
  for (const auto& word : split_text(request.devices, ',')) {
    const int index = parse_number<int>(word).value_or(-1);
    if (index < 0) refuse(request, "a list must hold whole numbers from 0, such as 0,2");
    if (index >= request.present)
      refuse(request, str("there is no device ", index, "; this node has ", request.present));
    if (std::find(indices.begin(), indices.end(), index) != indices.end())
      refuse(request, str("device ", index, " stands there twice"));
    indices.push_back(index);
  }
  return indices;
}

int count_entries(const std::string& folder, bool (*counts)(const std::filesystem::path&)) {
  std::error_code error;
  return static_cast<int>(std::ranges::count_if(std::filesystem::directory_iterator(folder, error), counts));
}

/// A node of AMD's topology is a GPU if it has SIMD units.
bool is_amd_gpu(const std::filesystem::path& node) {
  std::ifstream properties(node / "properties");
  for (std::string key, value; properties >> key >> value;)
    if (key == "simd_count") return value != "0";
  return false;
}

/// True for "nvidia0", false for "nvidiactl".
bool is_nvidia_device(const std::filesystem::path& file) {
  const auto name = file.filename().string();
  return name.starts_with("nvidia") && parse_number<int>(std::string_view(name).substr(6));
}

/// Looks for NVIDIA's driver on a server, in a container, in WSL and on Jetson, and for AMD's driver.
bool has_driver(const std::string& root) {
  std::error_code error;
  for (const char* sign : {"/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvmap",
                           "/dev/kfd", "/sys/class/kfd"})
    if (std::filesystem::exists(root + sign, error)) return true;
  return false;
}

constexpr const char* kVisible[] = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"};

bool is_uuid(const std::string& entry) { return entry.starts_with("GPU-") || entry.starts_with("MIG-"); }

/// The driver silently drops an entry that it does not know, and all entries after it, so such a list is refused.
std::vector<std::string> read_visible(const std::string& variable, const std::string& list) {
  std::vector<std::string> entries;
  if (list == "NoDevFiles") return entries;  // SLURM's word for no devices
  for (const auto& part : split_text(list + ",", ',')) {
    const std::string entry(trimmed(part));
    if (entry == "-1") break;
    if (!is_uuid(entry) && !parse_number<int>(entry))
      throw ConfigError("MU573", str(variable, " is '", list, "', in which '", entry,
                                     "' is neither an index, such as 0, nor a UUID that begins with GPU- or MIG-; the "
                                     "driver would leave out this entry and all behind it"));
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

DeviceChoice choose_devices(const DeviceRequest& request) {
  require_one_device(request.accelerator, "--accelerator");
  bool unsaid = request.accelerator.empty() || request.accelerator == "auto";
  if (request.accelerator == "cpu" || (unsaid && request.present == 0)) return {count_processes(request), {}};
  const int count = parse_number<int>(request.devices).value_or(0);
  if (request.present == 0 && is_xla_device(request.accelerator)) {
    // The launcher cannot count the devices of a backend that the program loads.
    if (count >= 1) return {count, {}};
    throw ConfigError("MU497", str("--accelerator is '", request.accelerator, "': ", no_xla_device(request.accelerator),
                                   ", and give their number: --devices 4"));
  }
  if (request.present == 0) refuse(request, str("no accelerator was found for --accelerator ", request.accelerator));
  if (request.devices == "auto" || request.devices == "-1") return {request.present, {}};
  if (request.devices.find(',') != std::string::npos) {
    const auto indices = read_indices(request);
    return {static_cast<int>(indices.size()), indices};
  }
  if (count < 1) refuse(request, "it must be a positive count, a list of indices such as 0,2, or auto");
  if (count > request.present) refuse(request, str("this node has ", request.present, " accelerators"));
  return {count, {}};
}

std::optional<std::vector<std::string>> visible_devices(const Environment& variables) {
  for (const auto* name : kVisible)
    if (const auto list = variables.find(name)) return read_visible(name, *list);
  return std::nullopt;
}

std::vector<std::string> devices_of_ranks(const DeviceRequest& request, const DeviceChoice& choice,
                                          const Environment& variables) {
  const auto visible = visible_devices(variables);
  if (request.accelerator == "cpu" || request.present == 0 || !visible ||
      std::none_of(visible->begin(), visible->end(), [](const auto& entry) { return entry.starts_with("MIG-"); }))
    return {};
  std::vector<std::string> devices;
  for (int rank = 0; rank < choice.count; ++rank)
    devices.push_back(
        visible->at(static_cast<size_t>(choice.indices.empty() ? rank : choice.indices[static_cast<size_t>(rank)])));
  return devices;
}

int count_accelerators(const Environment& variables, std::string root) {
  if (root.empty()) root = variables.find("MUSTER_TEST_ROOT").value_or("");
  if (const auto visible = visible_devices(variables)) return has_driver(root) ? static_cast<int>(visible->size()) : 0;
  const auto any = [](const std::filesystem::path&) { return true; };
  if (const int listed = count_entries(root + "/proc/driver/nvidia/gpus", any)) return listed;
  const int files = count_entries(root + "/dev", is_nvidia_device);
  return files ? files : count_entries(root + "/sys/class/kfd/kfd/topology/nodes", is_amd_gpu);
}

int count_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (quota_file >> quota >> period && period > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
  return std::max(cores, 1);
}

namespace {

constexpr const char* kVersionFile = "proc/driver/nvidia/version";
constexpr std::string_view kBlanks = " \t\r\n";

/// The text without escape sequences: nvidia-smi underlines the header.
std::string without_escapes(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') i = std::min(text.find('m', i), text.size());
    else plain += text[i];
  }
  return plain;
}

/// True for "570.86.15", false for "x86_64" and "13".
bool is_version(const std::string& word) {
  return word.front() != '.' && word.find('.') != std::string::npos &&
         word.find_first_not_of("0123456789.") == std::string::npos;
}

std::string version_in(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (is_version(word)) return word;
  return "";
}

bool is_gpu(const std::string& name) {
  return name.starts_with("GPU") && parse_number<unsigned int>(std::string_view(name).substr(3));
}

/// The meaning of nvidia-smi's link names; the closest links first.
std::string meaning_of(const std::string& link) {
  static const std::map<std::string, const char*> words{{"PIX", "one PCIe bridge"},
                                                        {"PXB", "several PCIe bridges"},
                                                        {"PHB", "the PCIe host bridge of a processor"},
                                                        {"NODE", "host bridges within a NUMA node"},
                                                        {"SYS", "between NUMA nodes"}};
  if (link.starts_with("NV")) return str(link, " (", link.substr(2), link == "NV1" ? " NVLink)" : " NVLinks)");
  const auto found = words.find(link);
  return found == words.end() ? link : str(link, " (", found->second, ")");
}

/// The pairs of GPUs in the upper half of the table, grouped by link.
std::map<std::string, std::vector<std::string>> pairs_of(const std::vector<std::string>& lines) {
  std::map<std::string, std::vector<std::string>> pairs;
  std::vector<std::string> titles;
  for (const auto& line : lines) {
    auto cells = split_text(line, '\t');  // the header line begins with an empty one
    for (auto& cell : cells) cell = std::string(trimmed(cell, kBlanks));
    if (titles.empty() && std::any_of(cells.begin(), cells.end(), is_gpu)) {
      titles = cells;
      continue;
    }
    if (cells.empty() || !is_gpu(cells.front())) continue;
    auto column = static_cast<size_t>(std::find(titles.begin(), titles.end(), cells.front()) - titles.begin());
    for (++column; column < std::min(titles.size(), cells.size()); ++column)
      if (is_gpu(titles[column])) pairs[cells[column]].push_back(cells.front() + "-" + titles[column]);
  }
  return pairs;
}

std::string problem_of(const CompletedProgram& answer) {
  if (!answer.problem.empty()) return "nvidia-smi " + answer.problem;
  const auto said = trimmed(answer.output, kBlanks);
  const auto how = answer.signal ? str("by signal ", answer.signal) : str("with code ", answer.exit_code);
  return str("nvidia-smi ended ", how, said.empty() ? "" : ": ", said.substr(0, said.find('\n')));
}

}  // namespace

std::vector<std::string> listed_devices(const std::string& output) {
  std::vector<std::string> devices;
  std::string gpu;
  const auto part = [](std::string_view line, size_t from, size_t to) {
    return trimmed(line.substr(from, to - from), kBlanks);
  };
  for (const auto& whole : split_text(output, '\n')) {
    const auto line = trimmed(whole, kBlanks);
    const auto colon = line.find(':'), device = line.find("Device");
    if (colon == std::string_view::npos) continue;
    const auto behind = part(line, colon + 1, line.size());
    if (line.starts_with("GPU ")) {
      gpu = part(line, 4, colon);
      devices.push_back(str(gpu, ": ", behind));
    } else if (line.starts_with("MIG ") && device < colon) {
      devices.push_back(str(gpu, ".", part(line, device + 6, colon), ": ", part(line, 0, device), " ", behind));
    }
  }
  return devices;
}

std::vector<std::string> listed_links(const std::string& output) {
  const auto pairs = pairs_of(split_text(output, '\n'));
  std::vector<std::string> links;
  for (const auto& [link, of] : pairs) {
    const bool several = pairs.size() == 1 && of.size() > 1;
    // n (n - 1) / 2 pairs, of which the first n - 1 begin with the first GPU.
    const auto gpus = 1 + std::count_if(of.begin(), of.end(), [&](const auto& pair) {
                        return pair.substr(0, pair.find('-')) == of.front().substr(0, of.front().find('-'));
                      });
    links.push_back(meaning_of(link) + ": " + (several ? str("between all ", gpus, " GPUs") : listed(of)));
  }
  return links;
}

GpuReport report_gpus(std::chrono::milliseconds timeout, const std::string& root) {
  CompletedProgram answer;  // nvidia-smi's last one; after a failure it is not asked again
  const auto ask = [&](std::vector<std::string> words) {
    if (!answer.succeeded()) return std::string();
    words.insert(words.begin(), "nvidia-smi");
    answer = run_program(std::move(words), timeout);
    return answer.succeeded() ? without_escapes(answer.output) : "";
  };
  GpuReport report;
  std::ifstream file(root + "/" + kVersionFile);
  std::string line;
  std::getline(file, line);
  if (const auto version = version_in(line); !version.empty()) report.driver = str(version, " (/", kVersionFile, ")");
  report.devices = listed_devices(ask({"-L"}));
  if (report.driver.empty()) {
    const auto version = version_in(ask({"--query-gpu=driver_version", "--format=csv,noheader"}));
    if (!version.empty()) report.driver = version + " (nvidia-smi)";
  }
  const auto gpus = std::count_if(report.devices.begin(), report.devices.end(),
                                  [](const auto& device) { return device.find('.') > device.find(':'); });
  if (gpus > 1) report.links = listed_links(ask({"topo", "-m"}));
  if (!answer.succeeded() && !answer.is_missing) report.problems.push_back(problem_of(answer));
  if (answer.is_missing && !report.driver.empty())
    report.problems.emplace_back("there is no nvidia-smi in PATH, which would name the devices and their links");
  return report;
}

}  // namespace muster::launcher
