#include "comm/group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "agreement.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/error_text.h"
#include "device/order.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr device::SyncPoint kOwnStream{"staging: copies run on a stream of their own"};
constexpr device::SyncPoint kGiven{"staging: the copy to the host reads after the caller's work"};
constexpr device::SyncPoint kToHost{"staging: from the device to pinned memory"};
constexpr device::SyncPoint kFilled{"staging: the host reads after the copy to it"};
constexpr device::SyncPoint kToDevice{"staging: from pinned memory to the device"};
constexpr device::SyncPoint kDone{"staging: the caller reads after the copy to the device"};

/// Whether the operation reads the tensor that it writes.
bool works_in_place(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::broadcast;
}

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
}

at::Tensor pinned_copy(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor copy = pinned_like(tensor);
  device::async_copy(kToHost, copy, tensor);
  return copy;
}

/// Offset and length, in elements, of this rank's part in the result of an in-place gather; length 0 for other
/// operations. That part already has its values, and its owner may read them during the gather.
std::pair<int64_t, int64_t> own_part(OperationKind kind, int rank, const at::Tensor& in, const at::Tensor& out) {
  if (kind != OperationKind::all_gather || !in.defined() || !in.is_alias_of(out)) return {0, 0};
  const auto begin = in.storage_offset() - out.storage_offset();
  return begin == rank * in.numel() ? std::pair(begin, in.numel()) : std::pair<int64_t, int64_t>();
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from, std::pair<int64_t, int64_t> without) {
  if (without.second == 0) return device::async_copy(kToDevice, to, from);
  const auto end = without.first + without.second;
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>(0, without.first), {end, to.numel() - end}})
    if (length > 0)
      device::async_copy(kToDevice, to.view(-1).narrow(0, begin, length), from.view(-1).narrow(0, begin, length));
}

/// The device of the operation's tensors; the CPU if they are in host memory, or if there are none.
at::Device device_of(const Operation& operation) {
  const at::Tensor& tensor = described_tensor(operation);
  return tensor.defined() ? tensor.device() : at::Device(at::kCPU);
}

constexpr std::chrono::milliseconds kDrain(5000);  ///< time that operations have to end when their group is destroyed

GroupIdentity with_flight_recorder(GroupIdentity identity, bool has_device) {
  if (has_device && !identity.flight_recorder) identity.flight_recorder = std::make_shared<FlightRecorder>();
  return identity;
}

/// The group's name for errors, which count ranks in the group. It lists their ranks in the job, by which users find
/// their output.
std::string name_with_job_ranks(const std::string& name, const std::vector<int>& job_ranks) {
  constexpr std::size_t kShown = 16;
  if (job_ranks == all_ranks(static_cast<int>(job_ranks.size()))) return name;
  const auto shown = std::span(job_ranks).first(std::min(kShown, job_ranks.size()));
  return formatted("{} (its ranks, in order, are {}{} of the job)", name, joined(shown),
                   job_ranks.size() > kShown ? ", ..." : "");
}

}  // namespace

/// Runs an operation on device tensors by means of copies in pinned host memory, which are transferred on a separate
/// stream. Thread safety: one thread at a time.
class Staging {
 public:
  /// Starts the copies after what the device's current stream holds now. Call it in the caller's thread.
  Staging(const Operation& operation, int rank, const device::Stream& stream)
      : rank_(rank), stream_(stream), device_(device_of(operation)), last_copy_(device::record(device_)),
        in_(operation.in), out_(operation.out), parts_(operation.parts) {}

  /// Gives the operation filled host copies instead of its tensors. The thread waits for the copies.
  void to_host(Operation& operation) {
    const device::StreamScope scope(kOwnStream, stream_);
    device::stream_wait(kGiven, last_copy_, device_);
    operation.in = pinned_copy(in_);
    if (out_.defined()) operation.out = works_in_place(operation.kind) ? pinned_copy(out_) : pinned_like(out_);
    for (auto& part : operation.parts) part = pinned_copy(part);
    device::host_wait(kFilled, device::record(device_));
  }

  /// Gives the operation its own tensors back, with the values that it wrote. The thread waits for that. An in-place
  /// gather does not write this rank's part, which may be read meanwhile. Tensors of Operation::results stay on the
  /// host.
  void to_device(Operation& operation) {
    if (out_.defined()) {
      const device::StreamScope scope(kOwnStream, stream_);
      copy_to_device(out_, operation.out, own_part(operation.kind, rank_, in_, out_));
      device::host_wait(kDone, device::record(device_));
    }
    operation.in = std::exchange(in_, {});
    operation.out = std::exchange(out_, {});
    operation.parts = std::exchange(parts_, {});
  }

  /// Moves Operation::results to the device, into memory of the current stream.
  void move_results(Operation& operation) const {
    for (auto& result : operation.results)
      if (result.defined()) result = result.to(device_);
  }

 private:
  int rank_;
  device::Stream stream_;
  at::Device device_;
  device::Event last_copy_;
  at::Tensor in_, out_;
  std::vector<at::Tensor> parts_;
};

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

void Work::wait() {
  if (!state_) return;
  state_->process.require_same_process("a started operation");
  if (state_->on_device) return state_->on_device->wait();
  base::Lock lock(state_->waiting->mutex());
  // Every operation of the queue ends within the timeout of the group, so this wait needs no timeout.
  state_->waiting->wait(
      lock, [this]() MUSTER_REQUIRES(state_->waiting->mutex()) { return state_->done; }, TimePoint::max());
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Work::is_completed() const {
  if (!state_) return true;
  state_->process.require_same_process("a started operation");
  if (state_->on_device) return state_->on_device->is_completed();
  state_->waiting->pause();
  base::Lock lock(state_->waiting->mutex());
  return state_->done;
}

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

Group::Group(GroupIdentity identity, std::unique_ptr<Collectives> collectives,
             std::unique_ptr<DeviceCollectives> device_collectives)
    : identity_(with_flight_recorder(std::move(identity), device_collectives != nullptr)),
      collectives_(std::move(collectives)), device_collectives_(std::move(device_collectives)),
      rank_(collectives_->rank()), size_(collectives_->size()),
      job_ranks_(identity_.ranks.empty() ? all_ranks(size_) : identity_.ranks),
      shown_name_(name_with_job_ranks(identity_.name, job_ranks_)),
      pending_(DeviceWatchdog::query_after(identity_.timeout)), attached_(rank_, size_),
      queue_(identity_.waiting, identity_.starts_inline, size_, attached_,
             [this](Operation& operation, TimePoint asked, TimePoint begin) { execute(operation, asked, begin); }) {
  if (device_collectives_) identity_.flight_recorder->add(identity_.name, job_ranks_);
  if (device_collectives_ && identity_.watch) identity_.watch->add(*this);
}

Group::~Group() {
  if (process_.is_forked()) {
    leave_to_parent();
    return;
  }
  if (device_collectives_ && identity_.watch) identity_.watch->remove(*this);
  const auto until = Clock::now() + std::min(identity_.timeout, kDrain);
  queue_.end(until, [this] { abort("the group was destroyed with operations under way"); });
  if (!device_collectives_) return;
  drain_device(until);
  identity_.flight_recorder->remove(identity_.name);
}

void Group::leave_to_parent() {
  struct Left {
    GroupIdentity identity;
    std::unique_ptr<Collectives> collectives;
    std::unique_ptr<DeviceCollectives> device_collectives;
    std::thread worker;
  };
  static auto* const left = new std::vector<Left>;  // never destroyed
  left->push_back({identity_, std::move(collectives_), std::move(device_collectives_), queue_.release_thread()});
}

void Group::run(Operation& operation) {
  require_same_process();
  if (stays_on_host(operation)) return queue_.run(operation);
  if (goes_to_device(operation)) return start_on_device(operation)->wait();
  stage(operation);
  queue_.run(operation);
  operation.staging->move_results(operation);
}

std::shared_ptr<Work::State> Group::start(Operation operation) {
  require_same_process();
  if (!stays_on_host(operation)) {
    if (goes_to_device(operation)) return std::make_shared<Work::State>(start_on_device(std::move(operation)));
    stage(operation);
  }
  return queue_.start(std::move(operation));
}

void Group::check_alive() {
  if (!failure_.is_kept()) return;
  const auto& failure = failure_.kept();
  report_lost_rank(failure.peer, failure.message());
  throw CommError(failure.id, failure.text);
}

void Group::report_lost_rank(int rank, std::string_view reason) {
  if (rank == rank_ || rank < 0 || rank >= size_) return;
  identity_.report.lost(job_rank(rank), reason);
}

void Group::execute(Operation& operation, Clock::time_point asked, Clock::time_point begin) {
  check_alive();
  at::NoGradGuard no_grad;
  try {
    if (operation.staging) operation.staging->to_host(operation);
    collectives_->run(operation, shown_name_, begin + identity_.timeout);
    if (operation.staging) operation.staging->to_device(operation);
  } catch (const TransportFailure& failure) {
    fail(explain(operation, failure, begin));
  } catch (const CommError& error) {
    fail({error.id(), error.message()});
  } catch (const std::exception& error) {
    fail(unexpected(operation, "failed", short_error_text(error.what(), 500)));
  } catch (...) {
    fail(unexpected(operation, "failed", kNoStdException));
  }
  attached_.take(operation);
  identity_.report.succeeded(asked);
  notify_observers(operation, asked);
}

Group::Failure Group::unexpected(const Operation& operation, std::string_view what, std::string_view reason) const {
  return {"MU061",
          formatted("{} {} on rank {} of group {}: {}", describe(operation), what, rank_, shown_name_, reason)};
}

void Group::fail(const Failure& seen) {
  failure_.keep(seen);
  const auto& failure = failure_.kept();
  // Reported before the peers learn of it: the rank that reports first knows best which rank was slow.
  report_lost_rank(failure.peer, failure.message());
  collectives_->abort(failure.message());
  collectives_->close();
  abort_device();
  throw CommError(failure.id, failure.text);
}

Group::Failure Group::explain(const Operation& operation, const TransportFailure& failure,
                              Clock::time_point begin) const {
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::string place = formatted("{}, operation {} of group {}", describe(operation), operation.sequence, shown_name_);
  const std::string peer = failure.peer < 0 ? "the other ranks" : formatted("rank {}", failure.peer);
  switch (failure.kind) {
    case TransportFailure::Kind::timeout:
      return {"MU051",
              formatted("rank {} waited {:.1f} s for {} in {}. Has that rank left the loop, or does it call something "
                        "else?",
                        rank_, seconds, peer, place),
              failure.peer};
    case TransportFailure::Kind::closed:
      return {"MU052",
              formatted("rank {} lost {} in {}, after {:.1f} s ({}). Look for the first failure in the output "
                        "of that rank; if there is none, it has left the loop earlier.",
                        rank_, peer, place, seconds, first_sentence(failure.detail)),
              failure.peer};
    case TransportFailure::Kind::aborted:
    case TransportFailure::Kind::unusable: break;
  }
  // All ranks throw the id of the root cause.
  const bool is_unusable = failure.kind == TransportFailure::Kind::unusable;
  const auto [id, cause] = split_message(failure.detail, is_unusable ? "MU061" : "MU053");
  if (is_unusable) return {id, formatted("rank {} cannot take part in {}: {}", rank_, place, cause), failure.peer};
  std::string who = failure.peer < 0 ? formatted("group {} was ended", shown_name_)
                                     : formatted("rank {} ended group {}", failure.peer, shown_name_);
  return {id, formatted("{}, seen by rank {} in {}: {}", who, rank_, place, cause), failure.peer};
}

void Group::abort(const std::string& cause) {
  if (process_.is_forked()) return;
  if (!failure_.keep({"MU053", formatted("rank {} ended group {}: {}", rank_, shown_name_, cause)})) return;
  collectives_->abort(cause);
  abort_device();
}

void Group::notify_observers(const Operation& operation, Clock::time_point asked) {
  if (!observers_.any()) return;
  const auto& tensor = described_tensor(operation);
  const OperationEvent event{name_of(operation.kind),
                             identity_.name,
                             operation.sequence,
                             payload_bytes(operation),
                             tensor.defined() ? tensor.scalar_type() : at::kByte,
                             asked,
                             Clock::now(),
                             operation.staging != nullptr};
  observers_.notify(event);
}

std::shared_ptr<Group> Group::subgroup(const std::vector<int>& ranks, const OperationLabel& label) {
  Operation operation{.kind = OperationKind::subgroup, .label = label, .list = {ranks.begin(), ranks.end()}};
  run(operation);
  GroupIdentity identity = identity_;
  identity.name += formatted("/{}", subgroups_++);
  identity.ranks.clear();
  for (int rank : ranks) identity.ranks.push_back(job_rank(rank));
  const bool is_alone = ranks.size() == 1 && identity.backend != "fake";
  auto device_collectives =
      device_collectives_ && !is_alone ? device_collectives_->split(ranks, identity.name) : nullptr;
  if (rank_index(ranks, rank_) == static_cast<int>(ranks.size())) return nullptr;
  if (is_alone) {
    identity.backend = "none";
    identity.starts_inline = true;
    return std::make_shared<Group>(std::move(identity), make_local());
  }
  auto host_collectives = collectives_->split(ranks, identity.name);
  return std::make_shared<Group>(identity, std::move(host_collectives), std::move(device_collectives));
}

std::shared_ptr<SharedBuffer> Group::share(std::size_t bytes, PeerAccess access, const OperationLabel& label) {
  if (!collectives_->shares_memory()) return nullptr;
  Operation operation{.kind = OperationKind::allocate_shared_buffer,
                      .label = label,
                      .list = {static_cast<int64_t>(bytes)},
                      .peer_access = access};
  run(operation);
  return std::move(operation.shared_buffer);
}

int job_rank(const Communicator& group, int rank) { return group.group()->job_rank(rank); }

void report_lost_rank(const Communicator& group, int rank, std::string_view reason) {
  group.group()->report_lost_rank(rank, reason);
}

void attach_piggyback(const Communicator& group, uint64_t value) { group.group()->attached_values().set_own(value); }

std::vector<uint64_t> attached_piggybacks(const Communicator& group) {
  return group.group()->attached_values().arrived();
}

bool Group::stays_on_host(const Operation& operation) const {
  return device_of(operation).is_cpu() || collectives_->takes_device_tensors();
}

bool Group::goes_to_device(const Operation& operation) const {
  return device_collectives_ && device_collectives_->takes(operation, device_of(operation).type());
}

std::shared_ptr<DeviceWork> Group::start_on_device(Operation operation) {
  check_alive();
  device_collectives_->require_dtype(operation);
  const auto asked = Clock::now();
  // Messages have separate numbers, because ranks need not agree on them.
  const bool is_message = is_point_to_point(operation.kind);
  operation.sequence = is_message ? device_messages_++ : device_sequence_++;
  if (!is_message) identity_.flight_recorder->note(identity_.name, make_header(operation, nullptr, 0));
  try {
    auto work = device_collectives_->start(operation, identity_.watch ? &pending_ : nullptr);
    notify_observers(operation, asked);
    return work;
  } catch (const std::exception& error) {
    fail(unexpected(operation, "could not start", short_error_text(error.what(), 500)));
  }
}

void Group::drain_device(TimePoint until) noexcept {
  try {
    const auto begin = Clock::now();
    auto left = pending_.oldest_unended();
    for (; left && Clock::now() < until; left = pending_.oldest_unended())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!left) return;
    const auto cause = formatted(
        "the group was destroyed with {}, operation {} of the device's operations, which has not ended {:.1f} s later. "
        "Has every rank called it?",
        describe(*left), left->sequence, std::chrono::duration<double>(Clock::now() - begin).count());
    log::error(formatted("MU053: rank {} ended group {}: {}", rank_, shown_name_, cause));
    abort(cause);
  } catch (const std::exception& error) {
    abort("its device fails: " + short_error_text(error.what(), 500));
  }
}

void Group::abort_device() noexcept {
  if (!device_collectives_) return;
  pending_.clear();
  device_collectives_->abort();
}

std::optional<DeviceSuspicion> Group::suspicion(TimePoint now) {
  if (failure_.is_kept()) return std::nullopt;
  DeviceSuspicion found{.group = identity_.name, .ranks = job_ranks_, .backend = device_collectives_->name()};
  try {
    found.error = device_collectives_->error();
    if (const auto oldest = pending_.oldest(now)) {
      found.operation = oldest->header;
      found.seconds = oldest->seconds.count();
    }
  } catch (const std::exception& error) {
    found.error = "the device fails: " + short_error_text(error.what(), 500);
  }
  const bool is_late = found.operation && std::chrono::duration<double>(found.seconds) > identity_.timeout;
  if (found.error.empty() && !is_late) return std::nullopt;
  return found;
}

void Group::end(const DeviceCause& cause) {
  if (cause.rank >= 0 && cause.rank != job_rank(rank_)) identity_.report.lost(cause.rank, cause.id + ": " + cause.text);
  if (failure_.keep({cause.id, cause.text})) collectives_->abort(cause.id + ": " + cause.text);
  abort_device();
}

void Group::compare_device_operations(const Communicator& through) {
  if (!device_collectives_) return;
  const auto difference =
      find_disagreement(identity_.name, job_ranks_, through.all_gather_bytes(identity_.flight_recorder->digests()));
  if (!difference) return;
  const auto operations = through.all_gather_bytes(identity_.flight_recorder->operations_of(difference->group));
  const auto of = [&](int rank) { return operations.at(static_cast<std::size_t>(rank_index(job_ranks_, rank))); };
  fail({"MU050", describe_difference(difference->group, difference->one, of(difference->one), difference->other,
                                     of(difference->other))});
}

void Group::stage(Operation& operation) {
  const at::Device device = device_of(operation);
  if (!staging_stream_ || staging_stream_->device() != device) staging_stream_ = device::stream_from_pool(device);
  operation.staging = std::make_shared<Staging>(operation, rank_, staging_stream_);
}

// In hours. Much longer timeouts would overflow a clock that counts nanoseconds.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(200'000);

void check_timeouts(const GroupOptions& options) {
  for (const auto limit : {options.rendezvous_timeout, options.timeout})
    if (limit.count() <= 0 || limit > kLongestTimeout)
      throw ConfigError("MU327",
                        formatted("the time-out of the group is {} ms, but one above 0 and up to 200000 hours is "
                                  "wanted; give for example std::chrono::minutes(10)",
                                  limit.count()));
}

std::string device_backend_of(const Communicator& group) { return group.group()->device_backend(); }

void require_same_device_operations(const Communicator& group) {
  group.group()->compare_device_operations(group.internal("the device's operations"));
}

}  // namespace muster::comm
