#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <vector>

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
  void fail() noexcept {
    failed_ = true;
    calls_.fail();
  }
  /// Keeps memory until the process ends, because MPI may still use it, and the communicator.
  void keep(std::shared_ptr<const void> memory);
  void add(Member* member) {
    base::Lock lock(mutex_);
    members_.insert(member);
  }
  void remove(Member* member) {
    base::Lock lock(mutex_);
    members_.erase(member);
  }
  /// Called when MPI ends in this process: ends the groups that still exist, and tells all ranks.
  void leave();
  /// Whether MPI has ended in that rank.
  bool has_left(int rank) const {
    bool there = false;
    return calls_.probe(rank, notices, communicator_, there) == 0 && there;
  }

 private:
  void notify_all() noexcept {
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_) calls_.notify(rank, notices, communicator_);
  }

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

/// MPI in this process. It is opened when the first group needs it, and ends with the process.
/// Thread safety: any thread.
class Library {
 public:
  static Library& of_process();

  /// Opens and initializes MPI unless that has been done. Throws: ConfigError (MU567), (MU568), CommError (MU557).
  Calls& calls();
  /// The ranks of this communicator; nullopt: those of MPI_COMM_WORLD, which is duplicated once. Collective: its ranks.
  /// Throws: what calls() throws; CommError (MU058) if not all of them came before the deadline.
  std::shared_ptr<DuplicatedComm> connect(const std::optional<int>& communicator,
                                          std::chrono::steady_clock::time_point deadline);

 private:
  std::shared_ptr<DuplicatedComm> duplicate(Handle communicator, std::chrono::steady_clock::time_point deadline);
  void leave();

  base::Mutex mutex_;
  Calls* calls_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  base::Mutex whole_mutex_;
  std::shared_ptr<DuplicatedComm> whole_ MUSTER_GUARDED_BY(whole_mutex_);
  base::Mutex comms_mutex_;
  std::vector<std::weak_ptr<DuplicatedComm>> comms_ MUSTER_GUARDED_BY(comms_mutex_);
};

}  // namespace muster::comm::mpi
