#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "comm/mpi/calls.h"

namespace muster::comm::mpi {

/// The ranks of a communicator, over what MPI_Comm_dup made of it, so that no message of the program matches one of
/// ours.
/// Groups of these ranks differ by their tags: no communicator is made for a part, which MPI can do only without a
/// time-out. Thread safety: any thread.
class DuplicatedComm {
 public:
  /// A group that ends with MPI.
  class Member {
   public:
    virtual void end(const std::string& cause) noexcept = 0;

   protected:
    ~Member() = default;
  };

  /// What the tags of a group are for; each group has one of each.
  enum Kind { frames, first_channel, second_channel, notices, kinds };

  /// Takes over a duplicate.
  DuplicatedComm(Calls& calls, Handle duplicate);
  ~DuplicatedComm();
  DuplicatedComm(const DuplicatedComm&) = delete;
  DuplicatedComm& operator=(const DuplicatedComm&) = delete;

  Calls& calls() const noexcept { return calls_; }
  Handle communicator() const noexcept { return communicator_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// A number that no other group has whose first rank is this one.
  int64_t next_number() noexcept { return ++groups_; }
  /// The first tag of the group of that number; 0 is the group of all ranks by which others are formed.
  /// Throws: CommError (MU557) if MPI has no more tags.
  int first_tag(int64_t number, int first_rank) const;
  /// Held while a transport of all ranks is made: its threads must not split at once.
  std::mutex& split_mutex() noexcept { return split_mutex_; }

  /// A group of these ranks has failed.
  void fail() noexcept;
  /// Keeps memory until the process ends: MPI may still use it, and the communicator.
  void keep(std::shared_ptr<const void> memory);
  void add(Member* member);
  void remove(Member* member);
  /// MPI ends here: so do the groups that are still there, and all ranks are told.
  void leave();
  /// Whether that rank has left.
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
  std::mutex split_mutex_;
  std::mutex mutex_;
  std::set<Member*> members_;
};

}  // namespace muster::comm::mpi
