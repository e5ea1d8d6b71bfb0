#include "comm/pending_operations.h"

#include <algorithm>
#include <utility>

namespace muster::comm {
namespace {

constexpr device::SyncPoint kEnded{"watch: whether the device has ended an operation"};

}  // namespace

PendingOperation::PendingOperation(const Operation& operation)
    : header_(make_header(operation, nullptr, 0)), asked_(std::chrono::steady_clock::now()) {}

void PendingOperation::started(c10::intrusive_ptr<c10d::Work> work) {
  const std::lock_guard lock(mutex_);
  is_started_ = true;
  work_ = std::move(work);
}

void PendingOperation::waited(at::Device device) {
  const std::lock_guard lock(mutex_);
  after_ = device::record(device);
  work_.reset();
}

bool PendingOperation::has_ended() const {
  const std::lock_guard lock(mutex_);
  if (after_) return device::query(kEnded, after_);
  return is_started_ && (!work_ || work_->isCompleted());
}

std::shared_ptr<PendingOperation> PendingOperations::add(const Operation& operation) {
  auto added = std::make_shared<PendingOperation>(operation);
  const std::lock_guard lock(mutex_);
  // A backend that threw leaves an operation that was never started; the group has failed in that case.
  for (int i = 0; i < 2 && operations_.size() > kMany && drop_ended(added->asked()); ++i) {}
  operations_.push_back(added);
  return added;
}

bool PendingOperations::drop_ended(TimePoint now) {
  if (operations_.empty() || !operations_.front()->has_ended()) return false;
  operations_.pop_front();
  // It ended between the last look at it, if there was one, and now. A later time would give the next operation more
  // than its timeout.
  last_end_ = std::max({last_end_, seen_running_, now - query_after_});
  return true;
}

std::optional<PendingOperations::Oldest> PendingOperations::oldest(TimePoint now) {
  const std::lock_guard lock(mutex_);
  while (!operations_.empty()) {
    const auto& front = *operations_.front();
    const auto begin = std::max(front.asked(), last_end_);
    if (front.asked() + query_after_ > now) return std::nullopt;
    if (drop_ended(now)) continue;
    seen_running_ = now;
    return Oldest{front.header(), now - begin};
  }
  return std::nullopt;
}

std::optional<Header> PendingOperations::oldest_unended() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  while (drop_ended(now)) {}
  if (operations_.empty()) return std::nullopt;
  return operations_.front()->header();
}

void PendingOperations::clear() {
  const std::lock_guard lock(mutex_);
  operations_.clear();
}

}  // namespace muster::comm
