#include "comm/device_watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "muster/base/detail/log.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick(200);
constexpr milliseconds kAnswers(600);   ///< how long the rank that asks waits for answers
constexpr milliseconds kVerdict(1500);  ///< how long the others wait for what it says
constexpr milliseconds kStay(300);      ///< how long rank 0 waits until the others know
constexpr milliseconds kStep(20);
constexpr const char* kQuestion = "question";
constexpr const char* kCause = "cause";
constexpr const char* kKnown = "known";

std::string answer_of(int rank) { return formatted("answer/{}", rank); }

std::string text_of(const DeviceCause& cause) { return formatted("{} {} {}", cause.id, cause.rank, cause.text); }

DeviceCause cause_of(const std::string& text) {
  const auto first = text.find(' '), second = text.find(' ', first + 1);
  if (second == std::string::npos) return {"MU564", text, -1};
  return {text.substr(0, first), text.substr(second + 1), std::stoi(text.substr(first + 1, second - first - 1))};
}

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

/// The other ranks of the operation: those of the group, or the peer of a message.
std::vector<int> others_of(const DeviceSuspicion& suspicion, int own_rank) {
  if (suspicion.operation && is_point_to_point(suspicion.operation->kind))
    return {suspicion.ranks.at(static_cast<std::size_t>(suspicion.operation->root))};
  auto others = suspicion.ranks;
  others.erase(std::remove(others.begin(), others.end(), own_rank), others.end());
  return others;
}

}  // namespace

DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations) {
  const auto others = others_of(suspicion, own_rank);
  for (const int rank : others)
    if (!operations.contains(rank)) return silent(suspicion, own_rank, rank);
  const auto& own = operations.at(own_rank);
  for (const int rank : others)
    if (have_mismatch(own, operations.at(rank)))
      return {
          "MU050",
          formatted("{} of the device's operations in group {}. All ranks must call the same operations in the same "
                    "order, with equal shapes and dtypes.",
                    own_rank < rank ? describe_difference(own_rank, own, rank, operations.at(rank))
                                    : describe_difference(rank, operations.at(rank), own_rank, own),
                    suspicion.group),
          -1};
  const bool is_collective = suspicion.operation && !is_point_to_point(suspicion.operation->kind);
  for (const int rank : others)
    if (is_collective && last_operation(operations.at(rank)) < suspicion.operation->sequence)
      return {"MU051",
              formatted("rank {} waited {:.1f} s for rank {} in {}, which that rank has not called. Has it left the "
                        "loop, or does it wait for something else?",
                        own_rank, suspicion.seconds, rank, operation_of(suspicion)),
              rank};
  if (!suspicion.error.empty())
    return {"MU564",
            formatted("the backend {} of rank {} reports in group {} that {}", suspicion.backend, own_rank,
                      suspicion.group, suspicion.error),
            -1};
  return {
      "MU051",
      formatted("rank {} waited {:.1f} s for its device in {}, which all ranks concerned may have called: a device, "
                "or the network between them, hangs, or work that was queued before takes longer than the time-out",
                own_rank, suspicion.seconds, operation_of(suspicion)),
      -1};
}

DeviceWatch::DeviceWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::optional<at::Device> device,
                         std::shared_ptr<DeviceLedger> ledger)
    : store_(std::move(store)), rank_(rank), size_(size), device_(device), ledger_(std::move(ledger)),
      thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

milliseconds DeviceWatch::patience(milliseconds timeout) { return std::min(timeout / 4, milliseconds(5000)); }

void DeviceWatch::add(Watched& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
  if (cause_) group.end(*cause_);
}

void DeviceWatch::remove(Watched& group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(std::remove(groups_.begin(), groups_.end(), &group), groups_.end());
}

bool DeviceWatch::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return stops_; });
}

void DeviceWatch::run() {
  const c10::OptionalDeviceGuard on_device(device_);
  for (;;) {
    if (pause(kTick)) return;
    const auto found = suspicion();
    const bool asked = is_asked();
    if (!found && !asked) continue;
    const auto cause = agree(found);
    stay_until_known();
    // A program without a later operation would end with a number that means nothing, and say nothing.
    log::error(formatted("{}: {}", cause.id, cause.text));
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    for (auto* group : groups_) group->end(cause);
    return;
  }
}

std::optional<DeviceSuspicion> DeviceWatch::suspicion() {
  const std::lock_guard lock(mutex_);
  for (auto* group : groups_)
    if (auto found = group->suspicion(Clock::now())) return found;
  return std::nullopt;
}

bool DeviceWatch::is_asked() {
  if (store_is_lost_) return false;
  try {
    return store_->check({kQuestion});
  } catch (const std::exception&) {
    store_is_lost_ = true;  // rank 0 has ended; what it took part in will time out
    return false;
  }
}

DeviceCause DeviceWatch::agree(const std::optional<DeviceSuspicion>& suspicion) {
  if (!store_is_lost_) try {
      if (suspicion && store_->add("suspicions", 1) == 1) return ask_all(*suspicion);
      answer();
      if (auto cause = wait_for_cause()) return *cause;
    } catch (const std::exception&) {
      store_is_lost_ = true;
    }
  if (suspicion) return find_cause(*suspicion, rank_, {{rank_, ledger_->operations_of(suspicion->group)}});
  return {"MU052",
          formatted("another rank found an operation of a device that does not end, and was lost before rank "
                    "{} learned which",
                    rank_),
          -1};
}

DeviceCause DeviceWatch::ask_all(const DeviceSuspicion& suspicion) {
  store_->set(kQuestion, suspicion.group);
  std::map<int, std::string> operations{{rank_, ledger_->operations_of(suspicion.group)}};
  const auto until = Clock::now() + kAnswers;
  for (const int rank : suspicion.ranks)
    if (rank != rank_ && wait_for(answer_of(rank), until)) operations[rank] = store_->get_to_str(answer_of(rank));
  const auto cause = find_cause(suspicion, rank_, operations);
  store_->set(kCause, text_of(cause));
  return cause;
}

void DeviceWatch::stay_until_known() {
  if (store_is_lost_) return;
  try {
    auto known = store_->add(kKnown, 1);
    const auto until = Clock::now() + kStay;
    while (rank_ == 0 && known < size_ && Clock::now() < until && !pause(kStep)) known = store_->add(kKnown, 0);
  } catch (const std::exception&) {
    store_is_lost_ = true;
  }
}

void DeviceWatch::answer() {
  if (!wait_for(kQuestion, Clock::now() + kVerdict)) return;
  store_->set(answer_of(rank_), ledger_->operations_of(store_->get_to_str(kQuestion)));
}

std::optional<DeviceCause> DeviceWatch::wait_for_cause() {
  if (!wait_for(kCause, Clock::now() + kVerdict)) return std::nullopt;
  return cause_of(store_->get_to_str(kCause));
}

bool DeviceWatch::wait_for(const std::string& key, Clock::time_point until) {
  while (!store_->check({key})) {
    if (Clock::now() > until) return false;
    if (pause(kStep)) return false;
  }
  return true;
}

}  // namespace muster::comm
