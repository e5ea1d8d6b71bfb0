#include "wait_policy.h"

#include <poll.h>
#include <sched.h>

#include "base/deadline.h"
#include "base/log.h"

namespace muster::comm {

bool is_ready(int descriptor, short events, TimePoint deadline) {
  for (;;) {
    pollfd waits{descriptor, events, 0};
    if (::poll(&waits, 1, milliseconds_until(deadline)) > 0) return true;
    if (TimePoint::clock::now() >= deadline) return false;
  }
}

Reminder::Reminder(std::function<std::string(double)> words)
    : words_(std::move(words)), thread_([this] { remind(); }) {}

Reminder::~Reminder() {
  {
    const base::Lock lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Reminder::remind() {
  const WarningTimeout waiting(std::chrono::milliseconds(0));
  auto part = kFirstWord;
  base::Lock lock(mutex_);
  while (!ended_.wait_for(lock, std::exchange(part, kLaterWords), [this]() MUSTER_REQUIRES(mutex_) { return end_; }))
    log::warning(words_(waiting.waited_seconds()));
}

bool WaitPolicy::wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) {
  if (deadline != TimePoint::max()) return changed_.wait_until(lock, deadline, ready);
  changed_.wait(lock, ready);
  return true;
}

SeededScheduler::SeededScheduler(uint64_t seed) : random_(seed), core_(sched_getcpu()) {}

/// Pins the thread to one core: only one thread runs at a time, and waking one on another core takes several times as
/// long.
void SeededScheduler::stay_on_core() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (core_ < 0 || core_ >= CPU_SETSIZE) return;
  CPU_SET(core_, &cores);
  sched_setaffinity(0, sizeof cores, &cores);  // a failure only makes the threads slower
}

void SeededScheduler::give_turn() {
  running_ = nullptr;
  if (!begun_) return;
  std::vector<Actor*> able;
  uint64_t total = 0;
  for (auto& actor : actors_) {
    if (actor->ended || !actor->waits || (actor->ready && !(*actor->ready)())) continue;
    able.push_back(actor.get());
    total += actor->weight;
  }
  if (able.empty()) {
    auto earliest = std::min_element(actors_.begin(), actors_.end(), [](const auto& a, const auto& b) {
      return (a->ended ? TimePoint::max() : a->deadline) < (b->ended ? TimePoint::max() : b->deadline);
    });
    if (earliest == actors_.end() || (*earliest)->ended || (*earliest)->deadline == TimePoint::max()) return;
    (*earliest)->late = true;
    able.push_back(earliest->get());
    total = (*earliest)->weight;
  }
  // Not a standard distribution, because its results may differ between standard libraries.
  uint64_t pick = random_() % total;
  std::size_t chosen = 0;
  while (pick >= able[chosen]->weight) pick -= able[chosen++]->weight;
  running_ = able[chosen];
  running_->waits = false;
  running_->turn.notify_all();
}

void SeededScheduler::await_turn(base::Lock& lock, Actor& actor) {
  actor.turn.wait(lock, [&]() MUSTER_REQUIRES(mutex()) { return running_ == &actor; });
  actor.ready = nullptr;
  actor.deadline = TimePoint::max();
}

bool SeededScheduler::wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) {
  Actor* actor = current();
  if (!actor) {
    if (deadline != TimePoint::max()) return outside_.wait_until(lock, deadline, ready);
    outside_.wait(lock, ready);
    return true;
  }
  actor->ready = &ready;
  actor->deadline = deadline;
  actor->late = false;
  actor->waits = true;
  give_turn();
  if (!running_) outside_.notify_all();
  await_turn(lock, *actor);
  return !actor->late || ready();
}

void SeededScheduler::pause() {
  base::Lock lock(mutex());
  Actor* actor = current();
  if (!actor) return;
  actor->ready = nullptr;
  actor->waits = true;
  give_turn();
  await_turn(lock, *actor);
}

std::thread SeededScheduler::start_thread(std::function<void()> body) {
  base::Lock lock(mutex());
  actors_.push_back(std::make_unique<Actor>());
  Actor* actor = actors_.back().get();
  actor->weight = 1 + random_() % 8;
  std::thread thread([this, actor, body = std::move(body)] {
    stay_on_core();
    {
      base::Lock inside(mutex());
      await_turn(inside, *actor);
    }
    body();
    base::Lock inside(mutex());
    threads_.erase(std::this_thread::get_id());
    actor->ended = true;
    give_turn();
    outside_.notify_all();
  });
  threads_[thread.get_id()] = actor;
  if (!running_) give_turn();
  return thread;
}

void SeededScheduler::join(std::thread& thread) {
  {
    // A thread whose body has returned still needs its turn to leave.
    base::Lock lock(mutex());
    auto id = thread.get_id();
    wait(
        lock, [&]() MUSTER_REQUIRES(mutex()) { return !threads_.contains(id); }, TimePoint::max());
  }
  thread.join();
}

void SeededScheduler::begin() {
  base::Lock lock(mutex());
  begun_ = true;
  if (!running_) give_turn();
}

}  // namespace muster::comm
