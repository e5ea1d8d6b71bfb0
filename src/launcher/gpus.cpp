#include "launcher/gpus.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>

#include "base/listing.h"
#include "base/log.h"
#include "base/run_program.h"
#include "base/spelling.h"

namespace muster::launcher {
namespace {

using log::str;

constexpr const char* kVersionFile = "proc/driver/nvidia/version";
constexpr std::string_view kBlanks = " \t\r\n";

std::vector<std::string> split(const std::string& text, char mark) {
  std::vector<std::string> parts;
  std::istringstream rest(text);
  for (std::string part; std::getline(rest, part, mark);) parts.push_back(part);
  return parts;
}

/// The cells of a line; the header line begins with an empty cell.
std::vector<std::string> cells_of(const std::string& line) {
  auto cells = split(line, '\t');
  for (auto& cell : cells) cell = std::string(trimmed(cell, kBlanks));
  return cells;
}

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
  const auto of_version = [](unsigned char c) { return std::isdigit(c) || c == '.'; };
  return std::isdigit(static_cast<unsigned char>(word.front())) && word.find('.') != std::string::npos &&
         std::all_of(word.begin(), word.end(), of_version);
}

std::string version_in(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (is_version(word)) return word;
  return "";
}

bool is_gpu(const std::string& name) {
  return name.size() > 3 && name.starts_with("GPU") &&
         std::all_of(name.begin() + 3, name.end(), [](unsigned char c) { return std::isdigit(c); });
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
    const auto cells = cells_of(line);
    if (titles.empty() && std::any_of(cells.begin(), cells.end(), is_gpu)) {
      titles = cells;
      continue;
    }
    if (cells.empty() || !is_gpu(cells.front())) continue;
    const auto own = std::find(titles.begin(), titles.end(), cells.front());
    for (auto other = own; other != titles.end(); ++other) {
      const auto column = static_cast<size_t>(other - titles.begin());
      if (other != own && is_gpu(*other) && column < cells.size())
        pairs[cells[column]].push_back(cells.front() + "-" + *other);
    }
  }
  return pairs;
}

/// Runs nvidia-smi until it fails once.
class NvidiaSmi {
 public:
  NvidiaSmi(std::chrono::milliseconds timeout, GpuReport& report) : report_(report), timeout_(timeout) {}

  std::string ask(std::vector<std::string> words) {
    if (gave_up_) return "";
    words.insert(words.begin(), "nvidia-smi");
    const auto answer = run_program(std::move(words), timeout_);
    is_there_ = !answer.is_missing;
    gave_up_ = !answer.succeeded();
    if (answer.succeeded()) return without_escapes(answer.output);
    if (is_there_) report_.problems.push_back(problem_of(answer));
    return "";
  }
  bool is_there() const { return is_there_; }

 private:
  static std::string problem_of(const CompletedProgram& answer) {
    if (!answer.problem.empty()) return "nvidia-smi " + answer.problem;
    const auto said = trimmed(answer.output, kBlanks);
    const auto how = answer.signal ? str("by signal ", answer.signal) : str("with code ", answer.exit_code);
    return str("nvidia-smi ended ", how, said.empty() ? "" : ": ", said.substr(0, said.find('\n')));
  }

  GpuReport& report_;
  std::chrono::milliseconds timeout_;
  bool gave_up_ = false, is_there_ = true;
};

std::string driver_of_system(const std::string& root) {
  std::ifstream file(root + "/" + kVersionFile);
  std::string line;
  std::getline(file, line);
  const auto version = version_in(line);
  return version.empty() ? "" : str(version, " (/", kVersionFile, ")");
}

}  // namespace

std::vector<std::string> listed_devices(const std::string& output) {
  std::vector<std::string> devices;
  std::string gpu;
  const auto part = [](std::string_view line, size_t from, size_t to) {
    return trimmed(line.substr(from, to - from), kBlanks);
  };
  for (const auto& whole : split(output, '\n')) {
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
  const auto pairs = pairs_of(split(output, '\n'));
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
  GpuReport report;
  NvidiaSmi nvidia_smi(timeout, report);
  report.driver = driver_of_system(root);
  report.devices = listed_devices(nvidia_smi.ask({"-L"}));
  if (report.driver.empty() && nvidia_smi.is_there()) {
    const auto version = version_in(nvidia_smi.ask({"--query-gpu=driver_version", "--format=csv,noheader"}));
    if (!version.empty()) report.driver = version + " (nvidia-smi)";
  }
  const auto gpus = std::count_if(report.devices.begin(), report.devices.end(),
                                  [](const auto& device) { return device.find('.') > device.find(':'); });
  if (gpus > 1) report.links = listed_links(nvidia_smi.ask({"topo", "-m"}));
  if (!nvidia_smi.is_there() && !report.driver.empty())
    report.problems.emplace_back("there is no nvidia-smi in PATH, which would name the devices and their links");
  return report;
}

}  // namespace muster::launcher
