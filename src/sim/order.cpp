#include "sim/order.h"

#include <algorithm>
#include <utility>

#include "muster/base/format.h"

namespace muster::sim {
namespace {

std::shared_ptr<const Origin> origin_here(const std::string& what) {
  return std::make_shared<const Origin>(Origin{what, CallSite::here()});
}

}  // namespace

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
