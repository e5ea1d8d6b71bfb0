#include "comm/shared_memory/thread_areas.h"

#include <cstring>
#include <new>
#include <utility>

#include "comm/rank_index.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr std::align_val_t kPage{4096};

/// Makes one buffer with memory for all ranks.
std::shared_ptr<SharedBuffer> new_buffer(int ranks, std::size_t bytes, PeerAccess access, uint64_t number) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes * static_cast<std::size_t>(ranks));
  auto buffer = std::make_shared<SharedBuffer>(SharedBuffer{number, bytes, access});
  for (int rank = 0; rank < ranks; ++rank)
    buffer->parts.push_back(memory->data() + bytes * static_cast<std::size_t>(rank));
  if (access == PeerAccess::read_contiguous) buffer->row = memory->data();
  buffer->keeps = std::move(memory);
  return buffer;
}

}  // namespace

class ThreadAreas final : public SharedAreas {
 public:
  ThreadAreas(std::shared_ptr<ThreadAreasHub> hub, int rank) : SharedAreas(rank, hub->size_), hub_(std::move(hub)) {
    for (int peer = 0; peer < size(); ++peer) set_area(peer, hub_->areas_[peer]);
  }
  ~ThreadAreas() override { close(); }

  void notify_all() override {
    WaitPolicy::Lock lock = begin_step();
    hub_->waiting_->changed(lock);
  }

  void abort(const std::string& cause) noexcept override {
    WaitPolicy::Lock lock(hub_->waiting_->mutex());
    if (ended_) return;
    ended_ = cause;
    write_cause(cause);
    hub_->waiting_->changed(lock);
  }

  void close() noexcept override {
    WaitPolicy::Lock lock(hub_->waiting_->mutex());
    if (!ended_) ended_ = "the group is closed";
    hub_->closed_[rank()] = true;
    hub_->waiting_->changed(lock);
  }

  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) override {
    const auto new_rank = rank_index(ranks, rank());
    WaitPolicy::Lock lock(hub_->waiting_->mutex());
    auto& part = hub_->subgroups_[name];
    auto hub = part.lock();
    if (!hub) part = hub = std::make_shared<ThreadAreasHub>(static_cast<int>(ranks.size()), hub_->waiting_);
    return ThreadAreasHub::join(hub, new_rank);
  }

  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                TimePoint) override {
    WaitPolicy::Lock lock = begin_step();
    auto& known = hub_->buffers_[number];
    auto buffer = known.lock();
    if (!buffer) known = buffer = new_buffer(size(), bytes, access, number);
    return buffer;
  }

  std::size_t part_alignment() const noexcept override { return 1; }
  double latency_of(const Frame&) override { return looks_++ % 2 ? 0 : 2 * kNearNanoseconds; }

 protected:
  bool is_scheduled() const noexcept override { return true; }

  void wait_for(int peer, int, const std::function<bool()>& ready, TimePoint deadline) override {
    WaitPolicy::Lock lock = begin_step();
    const auto lost = [&] { return peer >= 0 && hub_->closed_[peer]; };
    const auto over = [&] { return ready() || ended_ || aborting_rank(peer) >= 0 || lost(); };
    const bool in_time = hub_->waiting_->wait(lock, over, deadline);
    if (ready()) return;
    if (ended_) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
    if (const int who = aborting_rank(peer); who >= 0) throw cause_of(who);
    if (in_time) throw TransportFailure{TransportFailure::Kind::closed, peer, "its thread left the group"};
    throw TransportFailure{TransportFailure::Kind::timeout, peer, ""};
  }

 private:
  /// A scheduling point: another thread may run first, and the rank may die.
  WaitPolicy::Lock begin_step() {
    hub_->waiting_->pause();
    WaitPolicy::Lock lock(hub_->waiting_->mutex());
    if (ended_) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
    if (hub_->kill_rank_ != rank() || ++step_ < hub_->kill_step_) return lock;
    ended_ = formatted("{}: rank {} was killed at step {}", "MU063", rank(), step_);
    hub_->closed_[rank()] = true;
    hub_->waiting_->changed(lock);
    throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
  }

  const std::shared_ptr<ThreadAreasHub> hub_;
  // Guarded by the mutex of the hub's waiting_.
  int64_t step_ = 0;
  std::optional<std::string> ended_;
  uint64_t looks_ = 0;  // counter that makes ranks alternate between near and far, whatever cores the threads run on
};

ThreadAreasHub::ThreadAreasHub(int size, std::shared_ptr<WaitPolicy> waiting)
    : size_(size), waiting_(std::move(waiting)), closed_(static_cast<std::size_t>(size)) {
  const std::size_t bytes = AreaLayout(size).bytes();
  for (int rank = 0; rank < size; ++rank) {
    areas_.push_back(static_cast<std::byte*>(::operator new(bytes, kPage)));
    std::memset(areas_.back(), 0, bytes);
  }
}

ThreadAreasHub::~ThreadAreasHub() {
  for (auto* area : areas_) ::operator delete(area, kPage);
}

std::unique_ptr<SharedAreas> ThreadAreasHub::join(const std::shared_ptr<ThreadAreasHub>& hub, int rank) {
  return std::make_unique<ThreadAreas>(hub, rank);
}

}  // namespace muster::comm
