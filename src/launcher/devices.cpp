#include "launcher/devices.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/accelerator_name.h"
#include "base/log.h"
#include "base/spelling.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

using log::str;

/// Limit on ranks per core. A larger number is a typing error: each rank is a process with its own threads and sockets.
constexpr int kMostPerCore = 128;

bool read_digits(std::string_view text, int& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

[[noreturn]] void refuse(const DeviceRequest& request, const std::string& reason) {
  throw ConfigError("MU030", str(request.place, " is '", request.devices, "': ", reason));
}

DeviceChoice choose_processes(const DeviceRequest& request) {
  DeviceChoice choice;
  if (request.devices == "auto") return choice;
  std::string where = request.accelerator == "cpu" ? "on the CPU" : "no accelerator was found, and on the CPU";
  if (!read_digits(request.devices, choice.count) || choice.count < 1)
    refuse(request, where + " it must be a positive number of processes, or auto (1)");
  if (const int most = kMostPerCore * count_cores(); choice.count > most)
    refuse(request, str("on ", count_cores(), " cores at most ", most, " processes are started"));
  return choice;
}

/// The launcher cannot count the devices of a backend that the program loads.
DeviceChoice choose_xla_processes(const DeviceRequest& request) {
  DeviceChoice choice;
  if (!read_digits(request.devices, choice.count) || choice.count < 1)
    throw ConfigError("MU497", str("--accelerator is '", request.accelerator, "': ", no_xla_device(request.accelerator),
                                   ", and give their number: --devices 4"));
  return choice;
}

std::vector<int> read_indices(const DeviceRequest& request) {
  std::vector<int> indices;
  std::string_view rest = request.devices;
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    int index = 0;
    if (!read_digits(rest.substr(0, comma), index) || index < 0)
      refuse(request, "a list must hold whole numbers from 0, such as 0,2");
    if (index >= request.present)
      refuse(request, str("there is no device ", index, "; this node has ", request.present));
    if (std::find(indices.begin(), indices.end(), index) != indices.end())
      refuse(request, str("device ", index, " stands there twice"));
    indices.push_back(index);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return indices;
}

int count_entries(const std::string& folder, bool (*counts)(const std::filesystem::path&)) {
  std::error_code error;
  int result = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) result += counts(entry.path());
  return result;
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
  int index = 0;
  return name.starts_with("nvidia") && read_digits(std::string_view(name).substr(6), index);
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
  std::istringstream rest(list + ",");
  for (std::string part; std::getline(rest, part, ',');) {
    const std::string entry(trimmed(part));
    if (int index = 0; entry == "-1") break;
    else if (!is_uuid(entry) && !read_digits(entry, index))
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
  if (request.accelerator == "cpu" || (unsaid && request.present == 0)) return choose_processes(request);
  if (request.present == 0 && is_xla_device(request.accelerator)) return choose_xla_processes(request);
  if (request.present == 0) refuse(request, str("no accelerator was found for --accelerator ", request.accelerator));
  DeviceChoice choice;
  choice.count = request.present;
  if (request.devices == "auto" || request.devices == "-1") return choice;
  if (request.devices.find(',') != std::string::npos) {
    choice.indices = read_indices(request);
    choice.count = static_cast<int>(choice.indices.size());
    return choice;
  }
  if (!read_digits(request.devices, choice.count) || choice.count < 1)
    refuse(request, "it must be a positive count, a list of indices such as 0,2, or auto");
  if (choice.count > request.present) refuse(request, str("this node has ", request.present, " accelerators"));
  return choice;
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

}  // namespace muster::launcher
