#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/shared_memory/areas.h"
#include "comm/wait_policy.h"
#include "muster/comm/transport.h"

namespace muster::comm {

class ThreadTransport;

/// Holds the messages between the threads of one group.
class ThreadHub {
 public:
  ThreadHub(int size, std::shared_ptr<WaitPolicy> waiting)
      : size_(size), waiting_(std::move(waiting)), mailboxes_(std::size_t(size) * size), closed_(size) {}

  /// Makes `rank` fail at send or receive number `step`, counted from 1.
  void kill(int rank, int64_t step) { kill_point_ = {rank, step}; }
  std::unique_ptr<Transport> join(const std::shared_ptr<ThreadHub>& self, int rank);

 private:
  friend class ThreadTransport;
  class Block;
  struct Mailbox {
    std::deque<Frame> frames;
    std::deque<Block*> sends;
    std::deque<Block*> receives;
  };
  struct KillPoint {
    int rank = -1;
    int64_t step = 0;
  };

  Mailbox& mailbox(int from, int to) MUSTER_REQUIRES(waiting_->mutex()) { return mailboxes_[from * size_ + to]; }

  const int size_;
  const std::shared_ptr<WaitPolicy> waiting_;
  KillPoint kill_point_;
  std::vector<Mailbox> mailboxes_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::vector<bool> closed_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::map<std::string, std::weak_ptr<ThreadHub>> subgroups_ MUSTER_GUARDED_BY(waiting_->mutex());
};

/// The areas of a group whose ranks are threads of this process.
class ThreadAreasHub {
 public:
  ThreadAreasHub(int size, std::shared_ptr<WaitPolicy> waiting);
  ~ThreadAreasHub();
  ThreadAreasHub(const ThreadAreasHub&) = delete;
  ThreadAreasHub& operator=(const ThreadAreasHub&) = delete;

  /// Makes `rank` fail at its scheduling point number `step`, counted from 1.
  void kill(int rank, int64_t step) { kill_rank_ = rank, kill_step_ = step; }
  static std::unique_ptr<SharedAreas> join(const std::shared_ptr<ThreadAreasHub>& hub, int rank);

 private:
  friend class ThreadAreas;

  const int size_;
  const std::shared_ptr<WaitPolicy> waiting_;
  int kill_rank_ = -1;
  int64_t kill_step_ = 0;
  std::vector<std::byte*> areas_;
  std::vector<bool> closed_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::map<std::string, std::weak_ptr<ThreadAreasHub>> subgroups_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::map<uint64_t, std::weak_ptr<SharedBuffer>> buffers_ MUSTER_GUARDED_BY(waiting_->mutex());
};

}  // namespace muster::comm
