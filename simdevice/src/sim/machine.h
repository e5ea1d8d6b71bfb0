#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <c10/core/Stream.h>

#include "base/mutex.h"
#include "muster/sim/sim.h"
#include "sim/order.h"

namespace muster::sim {

/// A task of a stream.
struct Command {
  std::string what;
  std::function<void()> run;
  std::function<bool()> ready = {};  ///< whether it can run; called often, under the machine's lock; empty: always
  std::vector<Access> accesses = {};
};

/// A stream: commands that run in order.
struct Lane {
  std::deque<Command> commands;
  uint64_t enqueued = 0, done = 0;
  uint64_t thawed = 0;  ///< draw of weights in which it moves whatever its weight is
  int64_t clock = -1;   ///< index in the order; -1: not used yet
};

/// An event. Counts how often recording was requested, and how many of these recordings are done.
struct Event {
  uint64_t asked = 0, done = 0;
  Lane* lane = nullptr;                ///< stream that records it
  std::shared_ptr<const Clock> clock;  ///< clock of the last recording
};
using EventPtr = std::shared_ptr<Event>;

/// One recording of an event.
struct Mark {
  EventPtr event;
  uint64_t turn = 0;
  std::shared_ptr<const Clock> clock = {};
  bool done() const { return event->done >= turn; }
};

/// The streams of all devices, and the one loop that runs their commands, in a host thread that waits for something.
/// Thread safety: all functions.
/// Why: docs/decisions/0133-a-simulated-accelerator.md.
class Machine {
 public:
  using Lock = base::BasicLock<std::recursive_mutex>;
  static constexpr int kStreams = 128;  ///< per device: the default stream, then the pool, then those of communicators
  static constexpr int kPool = 32;

  static Machine& get();
  void start(const Options& options) MUSTER_NO_THREAD_SAFETY_ANALYSIS;  // no thread uses the machine yet
  const Options& options() const { return options_; }

  void enqueue(c10::Stream stream, Command command);
  Mark record(const EventPtr& event, c10::Stream stream);
  void block(const Mark& mark, c10::Stream stream);
  /// Whether the mark is done. Also lets a command run, so that a polling thread makes progress.
  bool query(const Mark& mark);
  bool is_idle(c10::Stream stream);

  /// Records that the host itself reads or writes these bytes now.
  void host_accesses(const std::string& what, const std::vector<Access>& accesses);
  /// Records that the host knows, without waiting, that the mark is done.
  void host_saw(const Mark& mark);
  size_t clock_of(c10::Stream stream) MUSTER_REQUIRES(mutex_);
  std::vector<FoundRace> take_races();
  std::string stream_name(size_t clock);

  // Makes the host wait; `cause` is counted unless it is empty. Throws: UsageError (MU556) for races, unless they are
  // collected, LaunchError (MU552) if a command failed, (MU551) if nothing can run for Options::patience.
  void synchronize(c10::Stream stream, const std::string& cause);
  void synchronize(const Mark& mark, const std::string& cause, std::chrono::milliseconds timeout = {});
  void synchronize_device(int device, const std::string& cause);

  /// For a thread that does not wait in the machine: runs some commands if none ran since the last call set `seen`.
  void run_if_idle(uint64_t& seen);

  c10::Stream pool_stream(int device);
  c10::Stream communicator_stream(int device);
  void seed(uint64_t seed);
  Lock lock() MUSTER_ACQUIRE(mutex_) MUSTER_NO_THREAD_SAFETY_ANALYSIS { return Lock(mutex_); }  // a lock leaves it

  /// What lock() locks, for annotations.
  base::BasicMutex<std::recursive_mutex>& mutex() MUSTER_RETURNS_MUTEX(mutex_) { return mutex_; }

  Stats stats MUSTER_GUARDED_BY(mutex_);
  Order order MUSTER_GUARDED_BY(mutex_);
  OnRace on_race MUSTER_GUARDED_BY(mutex_) = OnRace::raise;

 private:
  Lane& lane(c10::Stream stream) MUSTER_REQUIRES(mutex_);
  bool query(const std::function<bool()>& done) MUSTER_REQUIRES(mutex_);
  void wait(Lock& lock, const std::string& cause, const Lane* wanted, std::chrono::milliseconds patience,
            const std::function<bool()>& done, const Clock& clock) MUSTER_REQUIRES(mutex_);
  void host_waited(const Clock& clock) MUSTER_REQUIRES(mutex_);
  /// Unlocks, which clang cannot follow: the lock is the caller's.
  [[noreturn]] void throw_race(Lock& lock) MUSTER_REQUIRES(mutex_) MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  uint32_t weight(const Lane& lane, const Lane* wanted) const MUSTER_REQUIRES(mutex_);
  bool step(const Lane* wanted = nullptr) MUSTER_REQUIRES(mutex_);
  void run_front(Lane& lane) MUSTER_REQUIRES(mutex_);
  bool thaw() MUSTER_REQUIRES(mutex_);
  std::string name_of(const Lane* lane) const MUSTER_REQUIRES(mutex_);
  std::string heads() const MUSTER_REQUIRES(mutex_);

  Options options_;
  base::BasicMutex<std::recursive_mutex> mutex_;
  std::condition_variable_any changed_;
  std::mt19937_64 random_ MUSTER_GUARDED_BY(mutex_);
  uint64_t seed_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint32_t eager_ MUSTER_GUARDED_BY(mutex_) = 0;       ///< one in this many enqueues lets commands run; 0: none does
  uint64_t draw_ MUSTER_GUARDED_BY(mutex_) = 1;        ///< random number that the weights are computed from
  uint64_t runs_ MUSTER_GUARDED_BY(mutex_) = 0;        ///< number of commands that have run
  uint64_t steps_left_ MUSTER_GUARDED_BY(mutex_) = 0;  ///< number of steps until new weights are drawn
  std::exception_ptr error_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Lane> lanes_ MUSTER_GUARDED_BY(mutex_);          ///< streams, device by device
  std::vector<const Lane*> clocks_ MUSTER_GUARDED_BY(mutex_);  ///< streams by index in the order
  std::set<Lane*> busy_ MUSTER_GUARDED_BY(mutex_);             ///< streams that have commands
  std::vector<int> next_pool_ MUSTER_GUARDED_BY(mutex_);
  std::vector<int> next_communicator_ MUSTER_GUARDED_BY(mutex_);
};

inline c10::Stream stream(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, sim::device(device), id);
}

int current_device();
/// Throws: UsageError (MU553) for a device that does not exist.
int exchange_device(int device);
c10::Stream current_stream(int device);
c10::Stream exchange_stream(c10::Stream stream);

}  // namespace muster::sim
