#include "comm/device_watchdog.h"

#include <c10/core/DeviceGuard.h>

#include "base/log.h"
#include "comm/group.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

std::string operation_of(const DeviceSuspicion& suspicion) {
  if (!suspicion.operation) return formatted("an operation of group {}", suspicion.group);
  return formatted("{}, operation {} of the device's operations in group {}", describe(*suspicion.operation),
                   suspicion.operation->sequence, suspicion.group);
}

DeviceCause silent(const DeviceSuspicion& suspicion, int own_rank, int rank) {
  return {"MU052",
          formatted("rank {} lost rank {} in {}, after {:.1f} s: rank {} does not answer. Look for the first failure "
                    "in the output of that rank; if there is none, it has left the loop earlier, or its node cannot be "
                    "reached.",
                    own_rank, rank, operation_of(suspicion), suspicion.seconds, rank),
          rank};
}

/// The other ranks that the operation involves: those of the group, or the peer of a send or recv.
std::vector<int> others_of(const DeviceSuspicion& suspicion, int own_rank) {
  if (suspicion.operation && is_point_to_point(suspicion.operation->kind))
    return {suspicion.ranks.at(static_cast<std::size_t>(suspicion.operation->root))};
  auto others = suspicion.ranks;
  others.erase(std::remove(others.begin(), others.end(), own_rank), others.end());
  return others;
}

std::string what_the_backend_says(const DeviceSuspicion& suspicion) {
  return suspicion.error.empty() ? ""
                                 : formatted(" (its backend {} reports that {})", suspicion.backend, suspicion.error);
}

using std::chrono::milliseconds;

constexpr milliseconds kLook(200);      ///< how often a rank looks for a question
constexpr milliseconds kAnswers(600);   ///< how long the asking rank waits for answers
constexpr milliseconds kVerdict(1300);  ///< how long the others wait for its verdict
constexpr milliseconds kStay(300);      ///< how long rank 0 waits until the others know
constexpr milliseconds kStep(20);
constexpr const char* kQuestion = "question";
constexpr const char* kCause = "cause";
constexpr const char* kKnown = "known";

std::string answer_of(int rank) { return formatted("answer/{}", rank); }

/// Thrown when this rank leaves.
struct Left {};

// The causes that a rank reports if it could not read the other ranks' records.

std::string cannot_ask(const DeviceSuspicion& suspicion, int own_rank) {
  return formatted("rank {} waited {:.1f} s in {}{}, and cannot ask the other ranks why: ", own_rank, suspicion.seconds,
                   operation_of(suspicion), what_the_backend_says(suspicion));
}

DeviceCause cause_of_silent_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server,
                                  double silent_seconds) {
  return {"MU574",
          cannot_ask(suspicion, own_rank) +
              formatted("the job's store, {}, has not answered for {:.1f} s. Look whether what holds it is stopped, by "
                        "a debugger or a signal, or cannot be reached.",
                        server.text, silent_seconds),
          server.rank};
}

DeviceCause cause_of_lost_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server) {
  return {"MU052",
          cannot_ask(suspicion, own_rank) +
              formatted("it has lost the job's store, {}. Look for the first failure in the output of all ranks, of "
                        "rank 0 first.",
                        server.text),
          server.rank};
}

DeviceCause cause_of_lost_rank_that_asked(int own_rank) {
  return {
      "MU052",
      formatted("another rank found an operation of a device that does not end, and was lost before rank {} learned "
                "which",
                own_rank)};
}

/// The cause as one text, in which it is sent to other ranks.
std::string text_of(const DeviceCause& cause) { return formatted("{} {} {}", cause.id, cause.rank, cause.text); }

DeviceCause cause_of(const std::string& text) {
  const auto first = text.find(' '), second = text.find(' ', first + 1);
  if (second == std::string::npos) return {"MU564", text, -1};
  return {text.substr(0, first), text.substr(second + 1), std::stoi(text.substr(first + 1, second - first - 1))};
}

}  // namespace

DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations) {
  const auto others = others_of(suspicion, own_rank);
  for (const int rank : others)
    if (!operations.contains(rank)) return silent(suspicion, own_rank, rank);
  const auto& own = operations.at(own_rank);
  for (const int rank : others)
    if (have_mismatch(own, operations.at(rank)))
      return {"MU050", describe_difference(suspicion.group, own_rank, own, rank, operations.at(rank))};
  const bool is_collective = suspicion.operation && !is_point_to_point(suspicion.operation->kind);
  for (const int rank : others)
    if (is_collective && last_operation(operations.at(rank)) < suspicion.operation->sequence)
      return {"MU051",
              formatted("rank {} waited {:.1f} s for rank {} in {}, which that rank has not called. Has it left the "
                        "loop, or does it wait for something else?",
                        own_rank, suspicion.seconds, rank, operation_of(suspicion)),
              rank};
  if (!suspicion.error.empty())
    return {"MU564", formatted("the backend {} of rank {} reports in group {} that {}", suspicion.backend, own_rank,
                               suspicion.group, suspicion.error)};
  return {
      "MU051",
      formatted("rank {} waited {:.1f} s for its device in {}, which all ranks concerned may have called: a device, "
                "or the network between them, hangs, or work that was queued before takes longer than the time-out",
                own_rank, suspicion.seconds, operation_of(suspicion))};
}

/// Finds one cause together with the other ranks of the job, through its store: the first rank with a suspicion asks
/// all others for their flight recorders, and says what the cause is. A store call takes at least the timeout if the
/// server is frozen, so a dedicated thread makes these calls. It is left behind if it does not end. Thread-safe.
/// Why: docs/decisions/0155-what-hangs-is-left-behind.md.
class CauseExchange {
 public:
  using Setup = DeviceWatchdog::Setup;
  /// The thread keeps the object alive until leave() was called and the store has answered.
  static std::shared_ptr<CauseExchange> start(Setup setup) {
    std::shared_ptr<CauseExchange> started(new CauseExchange(std::move(setup)));
    started->thread_ = std::thread([started] { started->run(); });
    return started;
  }

  /// Reports a suspicion. Call it once. From then on wait() has a cause within kBound, whatever the store does.
  void suspect(DeviceSuspicion suspicion) {
    const base::Lock lock(mutex_);
    suspected_ = Clock::now();
    if (store_is_lost_ && !cause_) cause_ = cause_of_lost_store(suspicion, setup_.rank, setup_.server);
    suspicion_ = std::move(suspicion);
    changed_.notify_all();
  }
  /// Waits up to `time` for the cause, found by the suspicion of this rank or of another one.
  std::optional<DeviceCause> wait(milliseconds time) {
    base::Lock lock(mutex_);
    auto until = Clock::now() + time;
    if (suspicion_) until = std::min(until, suspected_ + kBound);
    changed_.wait_until(lock, until, [this]() MUSTER_REQUIRES(mutex_) { return leaves_ || cause_; });
    if (const auto now = Clock::now(); !cause_ && suspicion_ && now >= suspected_ + kBound) cause_ = own_cause(now);
    return cause_;
  }
  /// Ends all waits. Returns within kLeave. Call it once, before the last owner is destroyed.
  void leave() {
    base::Lock lock(mutex_);
    leaves_ = true;
    changed_.notify_all();
    const bool ended = changed_.wait_for(lock, kLeave, [this]() MUSTER_REQUIRES(mutex_) { return ended_; });
    lock.unlock();
    if (ended) thread_.join();
    else thread_.detach();
  }
  bool has_left() const {
    const base::Lock lock(mutex_);
    return leaves_;
  }

  static constexpr milliseconds kBound{1500}, kLeave{500};

 private:
  using Clock = std::chrono::steady_clock;
  explicit CauseExchange(Setup setup) : setup_(std::move(setup)) {}

  // Called by the thread. All of them throw when this rank leaves, and what the store throws.
  void run() {
    std::optional<DeviceSuspicion> own;
    std::optional<DeviceCause> cause;
    bool begun = false, lost_store = false;
    try {
      while (!begun) {
        own = wait_for_suspicion();
        begun = own || call([this] { return setup_.store->check({kQuestion}); });
      }
      cause = agree(own);
      stay_until_known();
    } catch (const Left&) {
    } catch (const std::exception&) {
      lost_store = true;  // the store's server has ended; its other users will time out
    }
    if (lost_store && begun && !cause)
      cause = own ? cause_of_lost_store(*own, setup_.rank, setup_.server) : cause_of_lost_rank_that_asked(setup_.rank);
    finish(std::move(cause), lost_store);
  }
  std::optional<DeviceSuspicion> wait_for_suspicion() {
    base::Lock lock(mutex_);
    changed_.wait_for(lock, kLook, [this]() MUSTER_REQUIRES(mutex_) { return leaves_ || suspicion_; });
    if (leaves_) throw Left{};
    return suspicion_;
  }
  DeviceCause agree(const std::optional<DeviceSuspicion>& own) {
    if (own && call([this] { return setup_.store->add("suspicions", 1); }) == 1) return ask_all(*own);
    return answer().value_or(cause_of_lost_rank_that_asked(setup_.rank));
  }
  DeviceCause ask_all(const DeviceSuspicion& own) {
    set(kQuestion, own.group);
    std::map<int, std::string> operations{{setup_.rank, setup_.flight_recorder->operations_of(own.group)}};
    std::vector<std::string> answers;
    for (const int rank : own.ranks)
      if (rank != setup_.rank) answers.push_back(answer_of(rank));
    const bool all = wait_for(answers, Clock::now() + kAnswers);
    for (const int rank : own.ranks)
      if (rank != setup_.rank && (all || call([&] { return setup_.store->check({answer_of(rank)}); })))
        operations[rank] = call([&] { return setup_.store->get_to_str(answer_of(rank)); });
    auto cause = find_cause(own, setup_.rank, operations);
    set(kCause, text_of(cause));
    return cause;
  }
  std::optional<DeviceCause> answer() {
    const auto until = Clock::now() + kVerdict;
    if (!wait_for({kQuestion}, until)) return std::nullopt;
    const auto group = call([this] { return setup_.store->get_to_str(kQuestion); });
    set(answer_of(setup_.rank), setup_.flight_recorder->operations_of(group));
    if (!wait_for({kCause}, until)) return std::nullopt;
    return cause_of(call([this] { return setup_.store->get_to_str(kCause); }));
  }
  /// For a rank whose process may serve the store: keeps the store alive until the others have read the cause.
  void stay_until_known() {
    const auto until = Clock::now() + kStay;
    auto known = call([this] { return setup_.store->add(kKnown, 1); });
    while (setup_.rank == 0 && known < setup_.size && Clock::now() < until) {
      rest(kStep);
      known = call([this] { return setup_.store->add(kKnown, 0); });
    }
  }
  bool wait_for(const std::vector<std::string>& keys, Clock::time_point until) {
    while (!call([&] { return setup_.store->check(keys); })) {
      if (Clock::now() > until) return false;
      rest(kStep);
    }
    return true;
  }
  void rest(milliseconds time) {
    base::Lock lock(mutex_);
    if (changed_.wait_for(lock, time, [this]() MUSTER_REQUIRES(mutex_) { return leaves_; })) throw Left{};
  }
  /// Makes one call of the store.
  template <class F>
  std::invoke_result_t<F> call(F&& function) {
    {
      const base::Lock lock(mutex_);
      called_ = Clock::now();
    }
    auto result = function();
    const base::Lock lock(mutex_);
    called_.reset();
    if (leaves_) throw Left{};
    return result;
  }
  void set(const std::string& key, const std::string& value) {
    call([&] {
      setup_.store->set(key, value);
      return true;
    });
  }

  void finish(std::optional<DeviceCause> cause, bool lost_store) {
    const base::Lock lock(mutex_);
    store_is_lost_ = lost_store;
    if (!cause && lost_store && suspicion_) cause = cause_of_lost_store(*suspicion_, setup_.rank, setup_.server);
    if (!cause_) cause_ = std::move(cause);
    ended_ = true;
    changed_.notify_all();
  }
  DeviceCause own_cause(Clock::time_point now) const MUSTER_REQUIRES(mutex_) {
    const auto since = std::min(called_.value_or(suspected_), suspected_);
    return cause_of_silent_store(*suspicion_, setup_.rank, setup_.server,
                                 std::chrono::duration<double>(now - since).count());
  }

  const Setup setup_;
  std::thread thread_;

  mutable base::Mutex mutex_;
  base::Condition changed_;
  bool leaves_ MUSTER_GUARDED_BY(mutex_) = false;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  bool store_is_lost_ MUSTER_GUARDED_BY(mutex_) = false;
  std::optional<DeviceSuspicion> suspicion_ MUSTER_GUARDED_BY(mutex_);
  Clock::time_point suspected_ MUSTER_GUARDED_BY(mutex_);
  /// When the current call of the store began; nullopt between calls.
  std::optional<Clock::time_point> called_ MUSTER_GUARDED_BY(mutex_);
  std::optional<DeviceCause> cause_ MUSTER_GUARDED_BY(mutex_);
};

DeviceWatchdog::DeviceWatchdog(Setup setup, std::optional<at::Device> device)
    : device_(device), exchange_(CauseExchange::start(std::move(setup))), thread_([this] { run(); }) {}

DeviceWatchdog::~DeviceWatchdog() {
  exchange_->leave();
  thread_.join();
}

milliseconds DeviceWatchdog::query_after(milliseconds timeout) { return std::min(timeout / 4, milliseconds(5000)); }

void DeviceWatchdog::add(Group& group) {
  const base::Lock lock(mutex_);
  groups_.push_back(&group);
  if (cause_) group.end(*cause_);
}

void DeviceWatchdog::remove(Group& group) {
  const base::Lock lock(mutex_);
  groups_.erase(std::remove(groups_.begin(), groups_.end(), &group), groups_.end());
}

void DeviceWatchdog::run() {
  const c10::OptionalDeviceGuard on_device(device_);
  for (bool suspects = false;;) {
    const auto cause = exchange_->wait(milliseconds(200));
    if (exchange_->has_left()) return;
    if (cause) return end_all(*cause);
    if (suspects) continue;
    if (auto found = suspicion()) {
      exchange_->suspect(std::move(*found));
      suspects = true;
    }
  }
}

std::optional<DeviceSuspicion> DeviceWatchdog::suspicion() {
  const base::Lock lock(mutex_);
  for (auto* group : groups_)
    if (auto found = group->suspicion(std::chrono::steady_clock::now())) return found;
  return std::nullopt;
}

void DeviceWatchdog::end_all(const DeviceCause& cause) {
  // Logged here, because a program without a later operation would end with a meaningless number and no message.
  log::error(formatted("{}: {}", cause.id, cause.text));
  const base::Lock lock(mutex_);
  cause_ = cause;
  for (auto* group : groups_) group->end(cause);
}

}  // namespace muster::comm
