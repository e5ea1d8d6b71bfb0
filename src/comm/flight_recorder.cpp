#include "comm/flight_recorder.h"

#include <algorithm>

#include "muster/base/format.h"

namespace muster::comm {
namespace {

/// One line of digests().
struct Reported {
  std::vector<int> ranks;
  bool is_the_librarys = false;
  int64_t count = 0;
  std::string digest;
};

bool may_differ(const Reported& one, const Reported& other) {
  return !one.is_the_librarys && !other.is_the_librarys && one.count != other.count;
}

std::map<std::string, Reported> read(const std::string& digests) {
  std::map<std::string, Reported> groups;
  std::istringstream text(digests);
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::size_t size = 0;
    words >> size;
    Reported reported;
    reported.ranks.resize(size);
    for (int& rank : reported.ranks) words >> rank;
    std::string name;
    words >> reported.is_the_librarys >> reported.count >> reported.digest;
    std::getline(words.ignore(), name);
    groups[name] = std::move(reported);
  }
  return groups;
}

std::map<int64_t, std::string> read_operations(const std::string& operations) {
  std::map<int64_t, std::string> all;
  std::istringstream text(operations);
  int64_t number = 0;
  for (std::string what; text >> number && std::getline(text.ignore(), what);) all[number] = what;
  return all;
}

}  // namespace

void FlightRecorder::note(const std::string& group, const Header& header) {
  const base::Lock lock(mutex_);
  Entry& entry = groups_.at(group);
  ++entry.count;
  entry.is_the_librarys = entry.is_the_librarys || header.label_hash != 0;
  entry.digest = (entry.digest ^ digest_of(header)) * 0x9e3779b97f4a7c15ULL + 1;
  entry.last.push_back(header);
  if (entry.last.size() > kNamed) entry.last.pop_front();
}

std::string FlightRecorder::digests() const {
  const base::Lock lock(mutex_);
  std::string text;
  for (const auto& [name, entry] : groups_) {
    text += std::to_string(entry.ranks.size());
    for (const int rank : entry.ranks) text += " " + std::to_string(rank);
    text += formatted(" {} {} {} {}\n", entry.is_the_librarys ? 1 : 0, entry.count, entry.digest, name);
  }
  return text;
}

std::string FlightRecorder::operations_of(const std::string& group) const {
  const base::Lock lock(mutex_);
  std::string text;
  if (const auto found = groups_.find(group); found != groups_.end())
    for (const auto& header : found->second.last) text += formatted("{} {}\n", header.sequence, describe(header));
  return text;
}

std::optional<DeviceDisagreement> find_disagreement(const std::string& own, const std::vector<int>& ranks,
                                                    const std::vector<std::string>& digests) {
  std::map<int, std::map<std::string, Reported>> all;
  for (std::size_t i = 0; i < ranks.size(); ++i) all[ranks[i]] = read(digests.at(i));
  for (const auto& [rank, groups] : all)
    for (const auto& [name, reported] : groups)
      for (const int peer : reported.ranks) {
        const auto peers = all.find(peer);
        if (peers == all.end()) continue;
        const auto theirs = peers->second.find(name);
        if (theirs == peers->second.end()) continue;  // the peer has already released the group
        const auto& other = theirs->second;
        if (other.count == reported.count && other.digest == reported.digest) continue;
        if (name != own && may_differ(reported, other)) continue;
        return DeviceDisagreement{name, std::min(rank, peer), std::max(rank, peer)};
      }
  return std::nullopt;
}

std::string describe_difference(const std::string& group, int one, const std::string& of_one, int other,
                                const std::string& of_other) {
  if (other < one) return describe_difference(group, other, of_other, one, of_one);
  std::map<int64_t, std::pair<std::string, std::string>> both;
  for (const auto& [number, what] : read_operations(of_one)) both[number].first = what;
  for (const auto& [number, what] : read_operations(of_other)) both[number].second = what;
  const auto called = [](int rank, const std::string& what) {
    return formatted("rank {} called {}", rank, what.empty() ? "nothing more" : what);
  };
  auto text = formatted("ranks {} and {} differ in an operation before the last ones", one, other);
  const auto found = std::find_if(both.begin(), both.end(),
                                  [](const auto& entry) { return entry.second.first != entry.second.second; });
  if (found != both.end())
    text = formatted("{}, {}, operation {}", called(one, found->second.first), called(other, found->second.second),
                     found->first);
  return text + formatted(
                    " of the device's operations in group {}. All ranks must call the same operations in the same "
                    "order, with equal shapes and dtypes.",
                    group);
}

bool have_mismatch(const std::string& of_one, const std::string& of_other) {
  const auto second = read_operations(of_other);
  for (const auto& [number, what] : read_operations(of_one))
    if (const auto same = second.find(number); same != second.end() && same->second != what) return true;
  return false;
}

int64_t last_operation(const std::string& operations) {
  const auto all = read_operations(operations);
  return all.empty() ? -1 : all.rbegin()->first;
}

}  // namespace muster::comm
