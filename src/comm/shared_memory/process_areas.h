#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/shared_memory/areas.h"
#include "comm/shared_memory/link.h"
#include "comm/shared_memory/segment.h"

namespace muster::comm {

/// What a rank contributes to a group.
struct OwnArea {
  OwnArea() = default;
  /// Throws: std::system_error if the system refuses memory or a descriptor.
  explicit OwnArea(int size);

  Segment memory;
  Descriptor event;  ///< with it another thread of this process wakes the rank
};

/// A peer, from the point of view of this rank.
struct Neighbour {
  Link link;
  std::shared_ptr<const Descriptor> process;  ///< becomes readable when the process has ended; may be null
  Segment memory;
  std::deque<LinkMessage> messages{};
  uint64_t woken = 0;  ///< number of the peer's last sleep that this rank ended
  bool gone = false;
};

/// The areas of ranks that are processes of one host. A waiting rank spins if no other thread needs its core, and then
/// sleeps until a peer wakes it, ends, or ends the group.
class ProcessAreas final : public SharedAreas {
 public:
  /// `peers` has one entry per rank; this rank's own is empty. `timeout` limits the forming of subgroups.
  ProcessAreas(int rank, OwnArea own, std::vector<Neighbour> peers, std::chrono::milliseconds timeout);
  ~ProcessAreas() override { close(); }

  void notify_all() override;
  void abort(const std::string& cause) noexcept override;
  void close() noexcept override;
  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) override;
  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                TimePoint deadline) override;
  std::size_t part_alignment() const noexcept override { return Segment::page_bytes(); }

 protected:
  void wait_for(int peer, int waker, const std::function<bool()>& ready, TimePoint deadline) override;
  void allocate(std::size_t begin, std::size_t bytes) override;

 private:
  /// A group of some of the ranks while it is being formed.
  struct Forming {
    const std::vector<int>& ranks;
    const std::string& name;
    TimePoint deadline;
    int new_rank;     ///< this rank's rank in the new group
    int offered = 0;  ///< members before this index have this rank's offer, or need none
    int heard = 0;    ///< from members before this index, an offer or a refusal was read
  };

  bool may_spin() const;
  bool spin(int peer, const std::function<bool()>& ready, TimePoint deadline) const;
  void park(int waker, const std::function<bool()>& ready, TimePoint deadline);
  void sleep(TimePoint deadline);
  static void drain(Neighbour& peer);
  void wake_everybody() noexcept;
  [[noreturn]] void throw_own_end();

  std::unique_ptr<SharedAreas> form(Forming& forming);
  Neighbour offer(const Forming& forming, int member, const Segment& own);
  Neighbour take_offer(Forming& forming, int member, const Segment& own);
  static void expect_reply(const Forming& forming, Neighbour& member);
  static void confirm(const Forming& forming, const std::vector<Neighbour>& members);
  /// Refuses the group, so that no member waits for this rank.
  void refuse(Forming& forming) noexcept;

  void offer_buffer(int peer, const std::string& name, const Segment& own, TimePoint deadline);
  /// Receives the peer's descriptor; none if the peer has none.
  Descriptor take_buffer(int peer, const std::string& name, TimePoint deadline);
  static TransportFailure lost(int peer, TimePoint deadline, const std::runtime_error& failure);

  static std::string refusal_of(const std::string& name) { return "not " + name; }
  /// What the peer sends for that name, or its refusal. Messages for other names, whose groups were given up, are
  /// skipped.
  LinkMessage next_message(int peer, const std::string& name, TimePoint deadline);

  const std::chrono::milliseconds timeout_;
  OwnArea own_;
  std::vector<Neighbour> peers_;
  int group_cores_ = 0;  // number of cores of all ranks together
  int own_cores_ = 0;
  const std::thread::id home_ = std::this_thread::get_id();
  uint64_t sleeps_ = 0;
  std::atomic<bool> ended_ = false;

  std::mutex mutex_;
  bool closed_ = false;
  std::string cause_;
};

}  // namespace muster::comm
