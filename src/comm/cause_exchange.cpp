#include "comm/cause_exchange.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "muster/base/format.h"

namespace muster::comm {
namespace {

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

}  // namespace

std::shared_ptr<CauseExchange> CauseExchange::start(Setup setup) {
  std::shared_ptr<CauseExchange> started(new CauseExchange(std::move(setup)));
  started->thread_ = std::thread([started] { started->run(); });
  return started;
}

template <class F>
auto CauseExchange::call(F&& function) {
  {
    const std::lock_guard lock(mutex_);
    called_ = Clock::now();
  }
  auto result = function();
  const std::lock_guard lock(mutex_);
  called_.reset();
  if (leaves_) throw Left{};
  return result;
}

void CauseExchange::suspect(DeviceSuspicion suspicion) {
  const std::lock_guard lock(mutex_);
  suspected_ = Clock::now();
  if (store_is_lost_ && !cause_) cause_ = cause_of_lost_store(suspicion, setup_.rank, setup_.server);
  suspicion_ = std::move(suspicion);
  changed_.notify_all();
}

std::optional<DeviceCause> CauseExchange::wait(milliseconds time) {
  std::unique_lock lock(mutex_);
  auto until = Clock::now() + time;
  if (suspicion_) until = std::min(until, suspected_ + kBound);
  changed_.wait_until(lock, until, [this] { return leaves_ || cause_; });
  if (const auto now = Clock::now(); !cause_ && suspicion_ && now >= suspected_ + kBound) cause_ = own_cause(now);
  return cause_;
}

DeviceCause CauseExchange::own_cause(Clock::time_point now) const {
  const auto since = std::min(called_.value_or(suspected_), suspected_);
  return cause_of_silent_store(*suspicion_, setup_.rank, setup_.server,
                               std::chrono::duration<double>(now - since).count());
}

void CauseExchange::leave() {
  std::unique_lock lock(mutex_);
  leaves_ = true;
  changed_.notify_all();
  const bool ended = changed_.wait_for(lock, kLeave, [this] { return ended_; });
  lock.unlock();
  if (ended) thread_.join();
  else thread_.detach();
}

bool CauseExchange::has_left() const {
  const std::lock_guard lock(mutex_);
  return leaves_;
}

void CauseExchange::run() {
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

void CauseExchange::finish(std::optional<DeviceCause> cause, bool lost_store) {
  const std::lock_guard lock(mutex_);
  store_is_lost_ = lost_store;
  if (!cause && lost_store && suspicion_) cause = cause_of_lost_store(*suspicion_, setup_.rank, setup_.server);
  if (!cause_) cause_ = std::move(cause);
  ended_ = true;
  changed_.notify_all();
}

std::optional<DeviceSuspicion> CauseExchange::wait_for_suspicion() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kLook, [this] { return leaves_ || suspicion_; });
  if (leaves_) throw Left{};
  return suspicion_;
}

DeviceCause CauseExchange::agree(const std::optional<DeviceSuspicion>& own) {
  if (own && call([this] { return setup_.store->add("suspicions", 1); }) == 1) return ask_all(*own);
  return answer().value_or(cause_of_lost_rank_that_asked(setup_.rank));
}

DeviceCause CauseExchange::ask_all(const DeviceSuspicion& own) {
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

std::optional<DeviceCause> CauseExchange::answer() {
  const auto until = Clock::now() + kVerdict;
  if (!wait_for({kQuestion}, until)) return std::nullopt;
  const auto group = call([this] { return setup_.store->get_to_str(kQuestion); });
  set(answer_of(setup_.rank), setup_.flight_recorder->operations_of(group));
  if (!wait_for({kCause}, until)) return std::nullopt;
  return cause_of(call([this] { return setup_.store->get_to_str(kCause); }));
}

void CauseExchange::stay_until_known() {
  const auto until = Clock::now() + kStay;
  auto known = call([this] { return setup_.store->add(kKnown, 1); });
  while (setup_.rank == 0 && known < setup_.size && Clock::now() < until) {
    rest(kStep);
    known = call([this] { return setup_.store->add(kKnown, 0); });
  }
}

bool CauseExchange::wait_for(const std::vector<std::string>& keys, Clock::time_point until) {
  while (!call([&] { return setup_.store->check(keys); })) {
    if (Clock::now() > until) return false;
    rest(kStep);
  }
  return true;
}

void CauseExchange::rest(milliseconds time) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, time, [this] { return leaves_; })) throw Left{};
}

void CauseExchange::set(const std::string& key, const std::string& value) {
  call([&] {
    setup_.store->set(key, value);
    return true;
  });
}

}  // namespace muster::comm
