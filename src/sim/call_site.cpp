#include "sim/call_site.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "muster/base/format.h"

namespace muster::sim {
namespace {

bool is_of_a_library(std::string_view path) {
  const auto name = path.substr(path.rfind('/') + 1);
  constexpr std::string_view kLibraries[] = {"libtorch", "libc10",  "libstdc++", "libc.so",  "libgomp",
                                             "libgcc_s", "libasan", "libtsan",   "ld-linux", "libpthread"};
  return std::any_of(std::begin(kLibraries), std::end(kLibraries), [&](auto start) { return name.starts_with(start); });
}

std::vector<std::string> lines_of(const std::string& command) {
  std::vector<std::string> lines;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  char line[4096];
  while (pipe && std::fgets(line, sizeof line, pipe.get())) {
    lines.emplace_back(line);
    while (!lines.back().empty() && lines.back().back() == '\n') lines.back().pop_back();
  }
  return lines;
}

/// Names of places in the program and its own libraries: "function at file:line", or what is known of that. addr2line
/// is asked once for each place, for many at a time. Thread safety: all functions.
class Names {
 public:
  static Names& get() {
    static auto& names = *new Names;
    return names;
  }

  /// The names of these frames. Empty for frames in other libraries.
  std::vector<std::string> of(void* const* frames, int count) {
    const std::lock_guard lock(mutex_);
    ask(frames, count);
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(known_[frames[i]]);
    return all;
  }

 private:
  void ask(void* const* frames, int count) {
    std::map<std::string, std::vector<std::pair<void*, uintptr_t>>> unknown;  // addresses by file
    for (int i = 0; i < count; ++i) {
      Dl_info info = {};
      if (!known_.emplace(frames[i], "").second || !::dladdr(frames[i], &info) || !info.dli_fname) continue;
      if (is_of_a_library(info.dli_fname)) continue;
      const auto offset =
          static_cast<const char*>(frames[i]) - static_cast<const char*>(info.dli_fbase) - 1;  // address of the call
      unknown[info.dli_fname].emplace_back(frames[i], offset);
    }
    for (const auto& [file, places] : unknown) ask(file, places);
  }

  void ask(const std::string& file, const std::vector<std::pair<void*, uintptr_t>>& places) {
    std::ostringstream command;
    command << "addr2line -f -C -e '" << file << "'" << std::hex;
    for (const auto& [frame, offset] : places) command << " 0x" << offset;
    const auto lines = lines_of(command.str() + " 2>/dev/null");
    for (size_t i = 0; i < places.size(); ++i) {
      auto& name = known_[places[i].first];
      name = formatted("{}+{}", file.substr(file.rfind('/') + 1), places[i].second);
      if (lines.size() != 2 * places.size() || lines[2 * i] == "??") continue;
      const auto at = lines[2 * i + 1].substr(lines[2 * i + 1].rfind('/') + 1);
      name = at.starts_with("?") ? lines[2 * i] : lines[2 * i] + " at " + at;
    }
  }

  std::mutex mutex_;
  std::map<void*, std::string> known_;
};

/// The name without return type and arguments: "std::f" for "void std::f<int>(int)".
std::string_view qualified(std::string_view name) {
  name = name.substr(0, name.find_first_of("(<"));
  return name.substr(name.rfind(' ') + 1);
}

/// Whether a function comes from the headers of LibTorch and C++ or from the simulator. Tests of the simulator do not
/// count.
bool is_passed_over(std::string_view name) {
  constexpr std::string_view kSpaces[] = {"at::", "c10::", "muster::sim::", "std::", "torch::"};
  return name.find("_Test::") == std::string_view::npos &&
         std::any_of(std::begin(kSpaces), std::end(kSpaces), [&](auto s) { return qualified(name).starts_with(s); });
}

}  // namespace

CallSite CallSite::here() {
  CallSite site;
  site.count_ = ::backtrace(site.frames_.data(), static_cast<int>(kMost));
  if (const auto node = torch::autograd::get_current_node()) site.node_ = node->name();
  return site;
}

std::string CallSite::text() const {
  constexpr int kShown = 3;
  std::string text;
  int shown = 0;
  for (const auto& name : Names::get().of(frames_.data(), count_)) {
    if (name == "_start" || qualified(name).starts_with("testing::") || shown == kShown) break;
    if (!name.empty() && !is_passed_over(name)) text += (shown++ ? ", called by " : "") + name;
  }
  if (!node_.empty()) text += (text.empty() ? "" : ", ") + std::string("in ") + node_;
  return text.empty() ? "an unknown place" : text;
}

}  // namespace muster::sim
