#include "sim/machine.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "sim/memory.h"
#include "sim/race.h"

namespace muster::sim {
namespace {

/// Microseconds that a waiting host gives other hosts to enqueue what is missing, before a stream that stands still
/// moves.
constexpr std::chrono::microseconds kGrace(300);

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

Machine& Machine::get() {
  static auto* machine = new Machine;  // never destroyed, because tensors may be freed after main()
  return *machine;
}

void Machine::start(const Options& options) {
  options_ = options;
  lanes_ = std::vector<Lane>(static_cast<size_t>(options.devices) * kStreams);
  next_pool_.resize(static_cast<size_t>(options.devices));
  next_communicator_.resize(static_cast<size_t>(options.devices));
}

Lane& Machine::lane(c10::Stream stream) {
  return lanes_.at(static_cast<size_t>(stream.device_index()) * kStreams + static_cast<size_t>(stream.id()));
}

void Machine::seed(uint64_t seed) {
  for (int device = 0; device < options_.devices; ++device) synchronize_device(device, {});
  const Lock lock(mutex_);
  seed_ = seed;
  random_.seed(seed);
  constexpr uint32_t kEager[] = {0, 0, 16, 2};
  eager_ = kEager[random_() % 4];
  draw_ = random_() | 1;
  steps_left_ = 0;
}

void Machine::enqueue(c10::Stream stream, Command command) {
  const Lock lock(mutex_);
  auto& to = lane(stream);
  order.add(clock_of(stream), command.what, command.accesses);
  protect_pinned(command.accesses);
  to.commands.push_back(std::move(command));
  ++to.enqueued;
  busy_.insert(&to);
  if (seed_ == 0) {
    while (step()) {}
  } else if (eager_ > 0 && random_() % eager_ == 0) {
    for (auto n = random_() % 8; n > 0 && step(); --n) {}
  }
  changed_.notify_all();
}

size_t Machine::clock_of(c10::Stream stream) {
  auto& of = lane(stream);
  if (of.clock < 0) {
    of.clock = static_cast<int64_t>(clocks_.size());
    clocks_.push_back(&of);
  }
  return static_cast<size_t>(of.clock);
}

Mark Machine::record(const EventPtr& event, c10::Stream stream) {
  const Lock lock(mutex_);
  const auto turn = ++event->asked;
  event->lane = &lane(stream);
  enqueue(stream, {"record of an event", [event, turn] { event->done = std::max(event->done, turn); }});
  event->clock = std::make_shared<const Clock>(order.at(clock_of(stream)));
  return {event, turn, event->clock};
}

void Machine::block(const Mark& mark, c10::Stream stream) {
  const Lock lock(mutex_);
  order.wait(clock_of(stream), *mark.clock);
  enqueue(stream, {"wait for an event", [] {}, [mark] { return mark.done(); }});
}

bool Machine::query(const std::function<bool()>& done) {
  if (!done() && random_() % 2 && !step()) thaw();
  return done();
}

bool Machine::query(const Mark& mark) {
  const Lock lock(mutex_);
  const bool done = query([&] { return mark.done(); });
  if (done) host_saw(mark);
  return done;
}

bool Machine::is_idle(c10::Stream stream) {
  const Lock lock(mutex_);
  const bool idle = query([&]() MUSTER_REQUIRES(mutex_) { return lane(stream).commands.empty(); });
  if (idle) host_waited(order.at(clock_of(stream)));
  return idle;
}

void Machine::host_waited(const Clock& clock) {
  order.host_waited(clock);
  release_pinned();
}

void Machine::host_saw(const Mark& mark) {
  const Lock lock(mutex_);
  host_waited(*mark.clock);
}

void Machine::host_accesses(const std::string& what, const std::vector<Access>& accesses) {
  const Lock lock(mutex_);
  order.add_of_host(what, accesses);
}

/// The weight of a stream in the draw. For a while some streams run ahead, some crawl and some (0) stand still.
uint32_t Machine::weight(const Lane& lane, const Lane* wanted) const {
  constexpr uint32_t kWeights[] = {0, 1, 4, 64};
  if (seed_ == 0) return 1;
  const auto index = static_cast<uint64_t>(&lane - lanes_.data());
  const auto drawn = kWeights[mixed(draw_ + index * 0x9e3779b97f4a7c15U) % 4];
  return &lane == wanted || lane.thawed == draw_ ? std::max(drawn, 1U) : drawn;
}

/// Runs one of the commands that can run; returns false if there is none. The lane that a host waits for never stands
/// still.
bool Machine::step(const Lane* wanted) {
  if (steps_left_-- == 0) {
    draw_ = random_() | 1;
    steps_left_ = 1 + random_() % 64;
  }
  std::vector<std::pair<Lane*, uint64_t>> able;
  uint64_t total = 0;
  for (auto* lane : busy_) {
    const uint64_t share = weight(*lane, wanted);
    const auto& front = lane->commands.front();
    if (share == 0 || (front.ready && !front.ready())) continue;
    able.emplace_back(lane, share);
    total += share;
  }
  if (able.empty()) return false;
  size_t chosen = 0;
  for (auto pick = random_() % total; pick >= able[chosen].second; ++chosen) pick -= able[chosen].second;
  run_front(*able[chosen].first);
  return true;
}

void Machine::run_front(Lane& lane) {
  auto command = std::move(lane.commands.front());
  lane.commands.pop_front();
  if (lane.commands.empty()) busy_.erase(&lane);
  const auto fail = [&](const char* why) MUSTER_REQUIRES(mutex_) {
    if (!error_)
      error_ = std::make_exception_ptr(
          LaunchError("MU552", formatted("{} failed on the simulated accelerator: {}", command.what, why)));
  };
  try {
    command.run();
  } catch (const Error&) {
    if (!error_) error_ = std::current_exception();
  } catch (const c10::Error& failure) {
    fail(failure.what_without_backtrace());  // thrown by the thread that waits first
  } catch (const std::exception& failure) {
    fail(failure.what());
  }
  ++lane.done;
  ++runs_;
  ++stats.commands;
  changed_.notify_all();
}

/// Lets one of the streams that stand still run.
bool Machine::thaw() {
  std::vector<Lane*> still;
  for (auto* lane : busy_)
    if (weight(*lane, nullptr) == 0) still.push_back(lane);
  if (still.empty()) return false;
  still[random_() % still.size()]->thawed = draw_;
  return true;
}

std::string Machine::name_of(const Lane* lane) const {
  const auto index = lane - lanes_.data();
  return formatted("{}:{} stream {}", options_.name, index / kStreams, index % kStreams);
}

std::string Machine::stream_name(size_t clock) {
  const Lock lock(mutex_);
  return clock == kHost ? "the host's own thread" : name_of(clocks_.at(clock));
}

std::vector<FoundRace> Machine::take_races() {
  const Lock lock(mutex_);
  return order.take_races();
}

std::string Machine::heads() const {
  std::string text;
  for (const auto* lane : busy_)
    text +=
        formatted("\n  {}: {}, then {} more", name_of(lane), lane->commands.front().what, lane->commands.size() - 1);
  return text.empty() ? " none has any" : text;
}

void Machine::wait(Lock& lock, const std::string& cause, const Lane* wanted, std::chrono::milliseconds patience,
                   const std::function<bool()>& done, const Clock& clock) {
  if (!cause.empty()) ++stats.host_waits[cause];
  auto give_up = std::chrono::steady_clock::now() + patience;
  for (auto seen = runs_; !done();) {
    if (step(wanted)) continue;
    // Another host may enqueue what is missing, or a stream that stands still may have it.
    if (changed_.wait_for(lock, kGrace) == std::cv_status::no_timeout || thaw()) continue;
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(seen, runs_) != runs_) give_up = now + patience;
    if (now > give_up)
      throw LaunchError("MU551", formatted("the host waits for the simulated accelerator ({}), and no command could "
                                           "run for {} ms. First commands of the streams:{}",
                                           cause, patience.count(), heads()));
  }
  host_waited(clock);
  if (on_race == OnRace::raise && order.has_races()) throw_race(lock);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Machine::throw_race(Lock& lock) {
  error_ = nullptr;  // an error that follows from the races
  const auto races = take_races();
  lock.unlock();  // making the text may start another program
  const auto more = races.size() > 1 ? formatted(" (and {} more)", races.size() - 1) : std::string();
  throw UsageError("MU556", described(races.front()).text() + more);
}

void Machine::synchronize(c10::Stream awaited, const std::string& cause) {
  Lock lock(mutex_);
  auto& of = lane(awaited);
  const auto clock = order.at(clock_of(awaited));
  wait(
      lock, cause, &of, options_.patience, [&of, until = of.enqueued] { return of.done >= until; }, clock);
}

void Machine::synchronize(const Mark& mark, const std::string& cause, std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  wait(
      lock, cause, mark.event->lane, timeout.count() > 0 ? timeout : options_.patience, [&] { return mark.done(); },
      *mark.clock);
}

void Machine::synchronize_device(int device, const std::string& cause) {
  Lock lock(mutex_);
  const auto* first = lanes_.data() + std::ptrdiff_t{device} * kStreams;
  const auto is_here = [first](const Lane* lane) { return lane >= first && lane < first + kStreams; };
  Clock clock;
  for (size_t i = 0; i < clocks_.size(); ++i)
    if (is_here(clocks_[i])) clock.join(order.at(i));
  wait(
      lock, cause, nullptr, options_.patience,
      [&]() MUSTER_REQUIRES(mutex_) { return std::none_of(busy_.begin(), busy_.end(), is_here); }, clock);
}

void Machine::run_if_idle(uint64_t& seen) {
  if (!mutex_.try_lock()) return;
  const Lock lock(mutex_, std::adopt_lock);
  for (int i = 0; seen == runs_ - static_cast<uint64_t>(i) && i < 16; ++i)
    if (!step() && !(thaw() && step())) break;
  seen = runs_;
}

c10::Stream Machine::pool_stream(int device) {
  const Lock lock(mutex_);
  return stream(device, 1 + next_pool_.at(static_cast<size_t>(device))++ % (kPool - 1));
}

c10::Stream Machine::communicator_stream(int device) {
  const Lock lock(mutex_);
  return stream(device, kPool + next_communicator_.at(static_cast<size_t>(device))++ % (kStreams - kPool));
}

}  // namespace muster::sim
