#include "comm/host_queue.h"

namespace muster::comm {

HostQueue::HostQueue(std::shared_ptr<WaitPolicy> waiting, bool never_waits, int ranks, const AttachedValues& attached,
                     Execute execute)
    : waiting_(std::move(waiting)), never_waits_(never_waits), attached_(attached), execute_(std::move(execute)),
      pair_sequences_(static_cast<std::size_t>(ranks)) {}

void HostQueue::number(Operation& operation) {
  operation.sequence = is_point_to_point(operation.kind) ? pair_sequences_[operation.root]++ : sequence_++;
  // Read now, not when the operation runs: on every rank it carries the value attached at the same point of the
  // program.
  operation.piggyback = attached_.own();
}

void HostQueue::run(Operation& operation) {
  auto asked = Clock::now();
  base::Lock lock(waiting_->mutex());
  if (busy_ || !queue_.empty()) {
    lock.unlock();
    auto state = start(std::move(operation));
    Work(state).wait();
    operation = std::move(state->operation);
    return;
  }
  number(operation);
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    execute_(operation, asked, asked);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  if (!queue_.empty()) waiting_->changed(lock);
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

std::shared_ptr<Work::State> HostQueue::start(Operation operation) {
  auto state = std::make_shared<Work::State>(std::move(operation), waiting_);
  base::Lock lock(waiting_->mutex());
  number(state->operation);
  if (never_waits_) {
    state->waiting->mutex().assume_locked();  // it is that of waiting_
    state->done = true;                       // nobody else knows the state before this returns
    lock.unlock();
    execute_(state->operation, state->asked, Clock::now());
    return state;
  }
  queue_.push_back(state);
  if (!worker_.joinable()) {
    worker_ended_ = false;
    lock.unlock();
    worker_ = waiting_->start_thread([this] { work_off(); });
    lock.lock();
  }
  waiting_->changed(lock);
  return state;
}

void HostQueue::work_off() {
  base::Lock lock(waiting_->mutex());
  for (;;) {
    waiting_->wait(
        lock, [this]() MUSTER_REQUIRES(waiting_->mutex()) { return stop_ || (!queue_.empty() && !busy_); },
        TimePoint::max());
    if (queue_.empty()) break;
    auto state = queue_.front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      execute_(state->operation, state->asked, Clock::now());
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    queue_.pop_front();
    busy_ = false;
    state->waiting->mutex().assume_locked();  // it is that of waiting_
    state->done = true;
    state->error = error;
    waiting_->changed(lock);
  }
  worker_ended_ = true;
  waiting_->changed(lock);
}

void HostQueue::end(TimePoint until, const std::function<void()>& abort) {
  base::Lock lock(waiting_->mutex());
  stop_ = true;
  const bool in_flight = busy_ || !queue_.empty();
  if (!worker_.joinable()) return;
  waiting_->changed(lock);
  const auto ended = [this]() MUSTER_REQUIRES(waiting_->mutex()) { return worker_ended_; };
  // Other ranks may need the operations that this rank started last, unless an exception is unwinding.
  const bool drains = std::uncaught_exceptions() == 0;
  const bool aborts = in_flight && !(drains && waiting_->wait(lock, ended, until));
  lock.unlock();
  if (aborts) abort();
  lock.lock();
  waiting_->wait(lock, ended, TimePoint::max());
  lock.unlock();
  waiting_->join(worker_);
}

}  // namespace muster::comm
