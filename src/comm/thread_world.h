#pragma once  // for other rooms

#include <deque>
#include <exception>

#include "comm/shared_memory/areas.h"
#include "comm/wait_policy.h"
#include "muster/comm/communicator.h"
#include "muster/comm/rendezvous.h"
#include "muster/comm/transport.h"

/// Ranks that are threads of one process: what they share in place of sockets and memory, and worlds of them.
namespace muster::comm {

/// Options of ranks that run as threads of one process.
struct ThreadWorldOptions {
  /// Number of ranks on each of several hosts, one host after another. Operations then run as in the backend
  /// "hierarchical". Empty: no hosts.
  std::vector<int> hosts{};
  int kill_rank = -1;     ///< rank that fails at its step `kill_step`, as if its process had died; -1: no rank fails
  int64_t kill_step = 0;  ///< step counted in messages of the first group that the rank sends or receives
  std::shared_ptr<const BackendEntry> device_backend{};  ///< see GroupOptions; null: there is none
  uint64_t seed = 0;           ///< 0: threads run freely; otherwise one at a time, in an order drawn from the seed
  bool shared_memory = false;  ///< whether ranks use shared memory, as processes do, instead of messages
  /// Timeout of each operation. With a seed it expires at once when no rank can proceed.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  bool two_level_sums = false;  ///< see GroupOptions
};

/// Runs `body` as `size` ranks, each in its own thread, over the backend "threads", and returns what each rank threw
/// (null if nothing). With a seed, a rank may wait for another only through its communicator.
std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body);

/// What the threads of one group share: the messages between them, or areas of memory.
class ThreadHub {
 public:
  ThreadHub(int size, std::shared_ptr<WaitPolicy> waiting)
      : size_(size), waiting_(std::move(waiting)), mailboxes_(std::size_t(size) * size), closed_(size) {}

  /// Makes `rank` fail at its step number `step`, counted from 1: a send or receive, or a scheduling point of its
  /// areas.
  void kill(int rank, int64_t step) { kill_point_ = {rank, step}; }
  std::unique_ptr<Transport> join(const std::shared_ptr<ThreadHub>& self, int rank);
  static std::unique_ptr<SharedAreas> join_areas(const std::shared_ptr<ThreadHub>& self, int rank);

 private:
  friend struct ThreadRank;
  friend class ThreadTransport;
  friend class ThreadAreas;
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
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };

  Mailbox& mailbox(int from, int to) MUSTER_REQUIRES(waiting_->mutex()) { return mailboxes_[from * size_ + to]; }

  const int size_;
  const std::shared_ptr<WaitPolicy> waiting_;
  KillPoint kill_point_;
  std::vector<Mailbox> mailboxes_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::vector<std::vector<Page>> areas_ MUSTER_GUARDED_BY(waiting_->mutex());  ///< by rank; empty if nobody uses them
  std::vector<bool> closed_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::map<std::string, std::weak_ptr<ThreadHub>> subgroups_ MUSTER_GUARDED_BY(waiting_->mutex());
  std::map<uint64_t, std::weak_ptr<SharedBuffer>> buffers_ MUSTER_GUARDED_BY(waiting_->mutex());
};

}  // namespace muster::comm
