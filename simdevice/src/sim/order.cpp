#include "sim/order.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include <torch/csrc/autograd/function.h>

#include "base/mutex.h"
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
    const base::Lock lock(mutex_);
    ask(frames, count);
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(known_[frames[i]]);
    return all;
  }

 private:
  void ask(void* const* frames, int count) MUSTER_REQUIRES(mutex_) {
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

  void ask(const std::string& file, const std::vector<std::pair<void*, uintptr_t>>& places) MUSTER_REQUIRES(mutex_) {
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

  base::Mutex mutex_;
  std::map<void*, std::string> known_ MUSTER_GUARDED_BY(mutex_);
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

std::shared_ptr<const Origin> origin_here(const std::string& what) {
  return std::make_shared<const Origin>(Origin{what, CallSite::here()});
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

uint64_t Clock::tick(size_t stream) {
  if (times_.size() <= stream) times_.resize(stream + 1);
  return ++times_[stream];
}

void Clock::join(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

Clock& Order::clock(size_t stream) {
  if (clocks_.size() <= stream) clocks_.resize(stream + 1);
  return clocks_[stream];
}

const Clock& Order::at(size_t stream) {
  auto& own = clock(stream);
  own.join(host_);
  return own;
}

void Order::add(size_t stream, const std::string& what, const std::vector<Access>& accesses) {
  auto& own = clock(stream);
  own.join(host_);
  const auto time = own.tick(stream);
  last_ = {};
  if (!is_on || accesses.empty()) return;
  const Use use{stream, time, origin_here(what)};
  last_ = use;
  for (const auto& access : accesses) check(access, use, own);
  for (const auto& access : accesses)
    if (!access.writes) read(access, use);
  for (const auto& access : accesses)
    if (access.writes) write(access.begin, access.end, use);
}

void Order::add_of_host(const std::string& what, const std::vector<Access>& accesses) {
  if (!is_on) return;
  const Use use{kHost, 0, origin_here(what)};
  for (const auto& access : accesses) check(access, use, host_);
}

void Order::check(const Access& access, const Use& use, const Clock& clock) {
  auto range = ranges_.upper_bound(access.begin);
  if (range != ranges_.begin() && std::prev(range)->second.end > access.begin) --range;
  for (; range != ranges_.end() && range->first < access.end; ++range) {
    const auto& past = range->second;
    if (!is_before(past.write, clock)) report(past.write, true, use, access.writes);
    for (const auto& read : past.reads)
      if (access.writes && !is_before(read, clock)) report(read, false, use, true);
  }
}

void Order::report(const Use& first, bool first_writes, const Use& second, bool second_writes) {
  const auto name = formatted("{} {} {} {}", first.origin->what, first.stream, second.origin->what, second.stream);
  if (known_.insert(name).second) found_.push_back({first, second, first_writes, second_writes});
}

void Order::report_host(const Use& first, bool first_writes, bool host_writes) {
  report(first, first_writes, {kHost, 0, origin_here("the host")}, host_writes);
}

std::vector<FoundRace> Order::take_races() {
  known_.clear();
  return std::exchange(found_, {});
}

/// Splits ranges so that none begins before `at` and ends after it.
void Order::split(const char* at) {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) return;
  --range;
  if (range->first == at || range->second.end <= at) return;
  ranges_[at] = range->second;
  range->second.end = at;
}

void Order::read(const Access& access, const Use& use) {
  split(access.begin);
  split(access.end);
  const auto* at = access.begin;
  for (auto range = ranges_.lower_bound(at); at < access.end; ++range) {
    if (range == ranges_.end() || range->first > at) {  // these bytes have no earlier access
      const auto* end = range == ranges_.end() ? access.end : std::min(access.end, range->first);
      range = ranges_.emplace(at, Range{end, {}, {}}).first;
    }
    auto& reads = range->second.reads;
    const auto same = std::find_if(reads.begin(), reads.end(), [&](const Use& u) { return u.stream == use.stream; });
    if (same == reads.end()) reads.push_back(use);
    else *same = use;
    at = range->second.end;
  }
}

void Order::write(const char* begin, const char* end, const Use& use) {
  split(begin);
  split(end);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
  ranges_.emplace(begin, Range{end, use, {}});
}

void Order::allocate(size_t stream, const char* begin, const char* end) {
  static const auto& origin = *new auto(std::make_shared<const Origin>(Origin{"the allocation", {}}));
  if (is_on) write(begin, end, {stream, at(stream).of(stream), origin});
}

void Order::forget(const char* begin, const char* end) {
  split(begin);
  split(end);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
}

void Order::release(size_t stream, const std::vector<size_t>& recorded, const char* begin, const char* end) {
  split(begin);
  split(end);
  const auto first = ranges_.lower_bound(begin), last = ranges_.lower_bound(end);
  const auto& own = at(stream);
  const auto ordered = [&](const Use& use) {
    return is_before(use, own) || std::find(recorded.begin(), recorded.end(), use.stream) != recorded.end();
  };
  const auto check_one = [&](const Use& use, bool writes) {
    if (is_on && !ordered(use))
      report(use, writes, {stream, own.of(stream), origin_here("the release of the memory")}, true);
  };
  for (auto range = first; range != last; ++range) {
    check_one(range->second.write, true);
    for (const auto& read : range->second.reads) check_one(read, false);
  }
  ranges_.erase(first, last);
}

}  // namespace muster::sim
