#pragma once

#include <deque>

#include "base/mutex.h"
#include "comm/header.h"

namespace muster::comm {

/// Records the collectives that this rank has given to backends of devices, by group. They are reported as text, which
/// ranks exchange. Thread-safe.
/// Why: docs/decisions/0138-device-operations-are-compared-later.md.
class FlightRecorder {
 public:
  /// `ranks`: the ranks of the group, as ranks in the job.
  void add(const std::string& group, std::vector<int> ranks) {
    const base::Lock lock(mutex_);
    groups_[group].ranks = std::move(ranks);
  }
  void remove(const std::string& group) {
    const base::Lock lock(mutex_);
    groups_.erase(group);
  }
  void note(const std::string& group, const Header& header);
  /// One line per group: its ranks, whether the library has operations in it, the number of its operations, their
  /// digest, and its name.
  std::string digests() const;
  /// One line for each of the last operations of that group: its number and description.
  std::string operations_of(const std::string& group) const;

 private:
  static constexpr std::size_t kNamed = 128;  ///< operations kept per group, which a message can name
  struct Entry {
    std::vector<int> ranks;
    bool is_the_librarys = false;
    int64_t count = 0;
    uint64_t digest = 0;
    std::deque<Header> last;
  };
  mutable base::Mutex mutex_;
  std::map<std::string, Entry> groups_ MUSTER_GUARDED_BY(mutex_);
};

/// Two ranks of the job that ran different operations in a group.
struct DeviceDisagreement {
  std::string group;
  int one = 0, other = 0;
};
/// The first disagreement in digests() of these ranks of the job, which are the ranks of group `own`. Ranks are
/// compared in the groups that they share. In groups that only the program uses a rank may be ahead, except in `own`.
std::optional<DeviceDisagreement> find_disagreement(const std::string& own, const std::vector<int>& ranks,
                                                    const std::vector<std::string>& digests);
/// What a message says about the first pair of operations in which two operations_of() of a group differ: "rank 0
/// called ..., rank 1 called ..., operation 7 of the device's operations in group world. ...".
std::string describe_difference(const std::string& group, int one, const std::string& of_one, int other,
                                const std::string& of_other);
/// Whether two operations_of() list different operations under one number.
bool have_mismatch(const std::string& of_one, const std::string& of_other);
/// The number of the last operation in operations_of(); -1: there is none.
int64_t last_operation(const std::string& operations);

}  // namespace muster::comm
