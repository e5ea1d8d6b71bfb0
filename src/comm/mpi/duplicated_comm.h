#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"
#include "comm/mpi/calls.h"

namespace muster::comm::mpi {

/// The ranks of a communicator, and the duplicate that MPI_Comm_dup made of it, so that no message of the program
/// matches one of ours.
/// Groups of these ranks differ by their tags. No communicator is made for a subgroup, because MPI can make one only
/// without a timeout. Thread safety: any thread.
class DuplicatedComm {
 public:
  /// A group that must end when MPI ends.
  class Member {
   public:
    virtual void end(const std::string& cause) noexcept = 0;

   protected:
    ~Member() = default;
  };

  /// What a tag of a group is used for; each group has one tag of each kind.
  enum Kind { frames, first_channel, second_channel, notices, kinds };

  /// Takes ownership of a duplicate.
  DuplicatedComm(Calls& calls, Handle duplicate);
  ~DuplicatedComm();
  DuplicatedComm(const DuplicatedComm&) = delete;
  DuplicatedComm& operator=(const DuplicatedComm&) = delete;

  Calls& calls() const noexcept { return calls_; }
  Handle communicator() const noexcept { return communicator_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// A number that no other group with this rank as its first rank has.
  int64_t next_number() noexcept { return ++groups_; }
  /// The first tag of the group with that number. 0 is the group of all ranks, which forms the others.
  /// Throws: CommError (MU557) if MPI has no more tags.
  int first_tag(int64_t number, int first_rank) const;
  /// Locked while a transport of all ranks is made: threads of this process must not split it at the same time.
  base::Mutex& split_mutex() noexcept MUSTER_RETURNS_MUTEX(split_mutex_) { return split_mutex_; }

  /// Records that a group of these ranks has failed.
  void fail() noexcept;
  /// Keeps memory until the process ends, because MPI may still use it, and the communicator.
  void keep(std::shared_ptr<const void> memory);
  void add(Member* member);
  void remove(Member* member);
  /// Called when MPI ends in this process: ends the groups that still exist, and tells all ranks.
  void leave();
  /// Whether MPI has ended in that rank.
  bool has_left(int rank) const;

 private:
  void notify_all() noexcept;

  Calls& calls_;
  const Handle communicator_;
  int rank_ = 0;
  int size_ = 0;
  int tag_bound_ = 0;
  std::atomic<int64_t> groups_ = 0;
  std::atomic<bool> failed_ = false;
  base::Mutex split_mutex_;
  base::Mutex mutex_;
  std::set<Member*> members_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::comm::mpi
