#include "device/processor.h"

#include <sched.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

#include "base/text.h"
#include "muster/base/format.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace muster::device {
namespace {

constexpr int kMostCores = 8192;
/// Environment variables with which a user places threads on cores.
constexpr const char* kPlacing[] = {"GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"};

/// A CPU set for system calls, large enough for kMostCores.
struct CoreSet {
  std::vector<unsigned long> words = std::vector<unsigned long>(kMostCores / (8 * sizeof(unsigned long)));
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(words.data()); }
  size_t bytes() const { return words.size() * sizeof(unsigned long); }
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Groups the cores by physical processor. A processor may run several hardware threads, each of which Linux lists as a
/// core.
std::vector<Cores> processors_of(const Cores& cores, const std::string& root) {
  std::vector<Cores> processors;
  Cores taken;
  const auto is_free = [&](int core) {
    return std::binary_search(cores.begin(), cores.end(), core) &&
           std::find(taken.begin(), taken.end(), core) == taken.end();
  };
  for (const int core : cores) {
    if (!is_free(core)) continue;
    auto siblings =
        read_cores(first_line(formatted("{}/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", root, core)));
    std::erase_if(siblings, [&](int one) { return !is_free(one); });
    if (siblings.empty()) siblings = {core};
    taken.insert(taken.end(), siblings.begin(), siblings.end());
    processors.push_back(std::move(siblings));
  }
  return processors;
}

Cores in_both(const Cores& a, const Cores& b) {
  Cores both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

/// Splits a message into the machine and the list of cores.
std::pair<std::string_view, std::string_view> parts_of(std::string_view message) {
  const auto end = message.find('\n');
  return {message.substr(0, end), end == std::string_view::npos ? std::string_view() : message.substr(end + 1)};
}

/// The cores of part `part` when the processors are divided into `parts` parts.
Cores part_of(const std::vector<Cores>& processors, size_t part, size_t parts) {
  Cores cores;
  for (size_t i = part * processors.size() / parts; i < (part + 1) * processors.size() / parts; ++i)
    cores.insert(cores.end(), processors[i].begin(), processors[i].end());
  std::sort(cores.begin(), cores.end());
  return cores;
}

}  // namespace

Cores read_cores(std::string_view list) {
  Cores cores;
  for (const auto& range : split_text(list, ',')) {
    const auto dash = range.find('-');
    const auto first = range.substr(0, dash), last = dash == std::string::npos ? first : range.substr(dash + 1);
    const int from = parse_number<int>(first).value_or(-1), to = parse_number<int>(last).value_or(-1);
    if (from < 0 || to < from || to >= kMostCores) return {};
    for (int core = from; core <= to; ++core) cores.push_back(core);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

std::string core_list(const Cores& cores) {
  std::string list;
  for (size_t i = 0; i < cores.size();) {
    size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    list += (list.empty() ? "" : ",") + std::to_string(cores[i]);
    if (end - i > 1) list += "-" + std::to_string(cores[end - 1]);
    i = end;
  }
  return list;
}

Cores own_cores() {
  CoreSet set;
  Cores cores;
  if (sched_getaffinity(0, set.bytes(), set.get()) != 0) return cores;
  for (int core = 0; core < kMostCores; ++core)
    if (CPU_ISSET_S(static_cast<size_t>(core), set.bytes(), set.get())) cores.push_back(core);
  return cores;
}

std::string run_on(const Cores& cores) {
  CoreSet before, set;
  for (const int core : cores) CPU_SET_S(static_cast<size_t>(core), set.bytes(), set.get());
  if (sched_getaffinity(0, before.bytes(), before.get()) != 0 || sched_setaffinity(0, set.bytes(), set.get()) != 0)
    return std::generic_category().message(errno);
  std::error_code ended;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ended)) {
    const int thread = std::stoi(entry.path().filename().string());
    CoreSet its;
    // A thread with a mask of its own keeps it. A thread that has ended needs none.
    if (sched_getaffinity(thread, its.bytes(), its.get()) == 0 && its.words == before.words)
      sched_setaffinity(thread, set.bytes(), set.get());
  }
  return "";
}

NearCores near_cores(const std::string& pci_address, const Cores& own, const Environment& variables,
                     const std::string& root) {
  if (pci_address.empty()) return {{}, "the device's place on the PCI bus is not known"};
  for (const auto* name : kPlacing)
    if (const auto value = variables.find(name)) return {{}, formatted("{} is {}", name, *value)};
  const auto all = read_cores(first_line(root + "/sys/devices/system/cpu/online"));
  if (all.empty()) return {{}, "the machine does not say which cores it has"};
  if (own != all) return {{}, formatted("this process was given the cores {} of {}", core_list(own), core_list(all))};
  std::string folder = pci_address;
  std::transform(folder.begin(), folder.end(), folder.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto near = in_both(own, read_cores(first_line(root + "/sys/bus/pci/devices/" + folder + "/local_cpulist")));
  if (near.empty()) return {{}, formatted("the system does not say which cores are near the device at {}", folder)};
  if (near == own) return {{}, "all cores are as near to the device"};
  return {near, ""};
}

std::string near_cores_message(const NearCores& near, const std::string& root) {
  return first_line(root + "/proc/sys/kernel/random/boot_id") + "\n" + core_list(near.cores);
}

NearCores share_of_rank(const std::vector<std::string>& messages, size_t rank, const std::string& root) {
  const auto [machine, own_list] = parts_of(messages.at(rank));
  const auto near = read_cores(own_list);
  size_t ranks = 0, place = 0;
  for (size_t other = 0; other < messages.size(); ++other) {
    const auto [its_machine, list] = parts_of(messages[other]);
    if (its_machine != machine || list.empty()) continue;
    if (list != own_list && !in_both(near, read_cores(list)).empty())
      return {{}, formatted("its near cores ({}) are partly those of rank {} ({})", own_list, other, list)};
    if (list != own_list) continue;
    if (other < rank) ++place;
    ++ranks;
  }
  const auto processors = processors_of(near, root);
  if (processors.size() < ranks)
    return {{}, formatted("{} ranks have the same {} near processors", ranks, processors.size())};
  return {ranks == 0 ? Cores() : part_of(processors, place, ranks), ""};
}

bool multiplies_bfloat16() {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
  return amx || (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1));
#elif defined(__aarch64__) && defined(__linux__)
  return getauxval(AT_HWCAP2) >> 14 & 1;
#else
  return true;
#endif
}

void initialize_vector_math() {
  [[maybe_unused]] static const bool initialized = [] {
    // Only the kernel is called; autograd is skipped.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    // All functions share the choice of kernels, so one contiguous call makes it for all of them.
    at::sin(at::zeros({1}, at::kFloat));
    return true;
  }();
}

}  // namespace muster::device
