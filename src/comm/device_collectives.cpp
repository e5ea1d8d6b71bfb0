#include "comm/device_collectives.h"

#include <algorithm>
#include <exception>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.reshape({-1}).view(at::kByte) : tensor;
}

at::Tensor widened(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kInt) : tensor; }

/// The reduction to use for numbers that are 0 or 1.
ReduceOp of_bits(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

/// The operation in a dtype that every backend has; see DeviceCollectives::start().
Operation converted(const Operation& operation) {
  Operation result = operation;
  const auto dtype = described_tensor(operation).scalar_type();
  const auto convert = reduces(operation.kind) && dtype == at::kShort ? widened : as_bytes;
  result.in = convert(operation.in);
  // One converted tensor if the operation has one: then it works in place, or on a part of its result.
  result.out = convert(operation.out);
  if (dtype == at::kBool) result.reduce = of_bits(operation.reduce);
  return result;
}

constexpr device::SyncPoint kEnded{"watch: whether the device has ended an operation"};
constexpr device::SyncPoint kOwnDevice{"collectives: the backend is called on the device of the tensors"};
constexpr device::SyncPoint kResult{"collectives: the current stream reads after the operation"};
constexpr device::SyncPoint kFinished{"collectives: another stream reads after a mean"};

}  // namespace

/// An operation that was passed to a device's backend. Its tensors are not kept. Thread-safe.
class PendingOperation {
 public:
  explicit PendingOperation(const Operation& operation) : header(make_header(operation, nullptr, 0)) {}
  /// Called when the backend has started it.
  void started(c10::intrusive_ptr<c10d::Work> work) {
    const base::Lock lock(mutex_);
    is_started_ = true;
    work_ = std::move(work);
  }
  /// Called when the device's current stream waits for it. From then on an event on that stream tells whether it has
  /// ended, so that nothing of the operation is kept.
  void waited(at::Device device) {
    const base::Lock lock(mutex_);
    after_ = device::record(device);
    work_.reset();
  }
  /// Whether the device has ended it. Throws: what the device throws.
  bool has_ended() const {
    const base::Lock lock(mutex_);
    if (after_) return device::query(kEnded, after_);
    return is_started_ && (!work_ || work_->isCompleted());
  }

  const Header header;
  const TimePoint asked = TimePoint::clock::now();

 private:
  mutable base::Mutex mutex_;
  bool is_started_ MUSTER_GUARDED_BY(mutex_) = false;
  c10::intrusive_ptr<c10d::Work> work_ MUSTER_GUARDED_BY(mutex_);
  device::Event after_ MUSTER_GUARDED_BY(mutex_);
};

std::shared_ptr<PendingOperation> PendingOperations::add(const Operation& operation) {
  auto added = std::make_shared<PendingOperation>(operation);
  const base::Lock lock(mutex_);
  // A backend that threw leaves an operation that was never started; the group has failed in that case.
  for (int i = 0; i < 2 && operations_.size() > kMany && drop_ended(added->asked); ++i) {}
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
  const base::Lock lock(mutex_);
  while (!operations_.empty()) {
    const auto& front = *operations_.front();
    const auto begin = std::max(front.asked, last_end_);
    if (front.asked + query_after_ > now) return std::nullopt;
    if (drop_ended(now)) continue;
    seen_running_ = now;
    return Oldest{front.header, now - begin};
  }
  return std::nullopt;
}

std::optional<Header> PendingOperations::oldest_unended() {
  const base::Lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  while (drop_ended(now)) {}
  if (operations_.empty()) return std::nullopt;
  return operations_.front()->header;
}

void DeviceWork::wait() {
  const at::Device device = described_tensor(operation_).device();
  // Without a timeout, because a timeout would make the host wait, too.
  if (work_ && device::passes(kResult, device::SyncKind::stream_wait)) work_->wait();
  if (std::exchange(waited_, true)) return device::stream_wait(kFinished, finished_, device);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  const bool has_result = operation_.kind != OperationKind::reduce || rank_ == operation_.root;
  // Bytes are a view of the operation's own memory and need no copy.
  if (converted_ && has_result && operation_.out.defined() && !converted_->out.is_alias_of(operation_.out))
    at::Tensor(operation_.out).copy_(converted_->out);
  finish_mean(operation_, rank_, size_);
  if (operation_.reduce == ReduceOp::mean || converted_) finished_ = device::record(device);
  kept_.clear();
  if (pending_) pending_->waited(device);
}

bool DeviceCollectives::lacks_dtype(const Operation& operation) const {
  const auto& tensor = described_tensor(operation);
  const auto& without = custom_.entry.without;
  return tensor.defined() && std::find(without.begin(), without.end(), tensor.scalar_type()) != without.end();
}

void DeviceCollectives::require_dtype(const Operation& operation) const {
  if (!lacks_dtype(operation)) return;
  const auto dtype = described_tensor(operation).scalar_type();
  if (reduces(operation.kind) && dtype != at::kShort && dtype != at::kBool)
    throw ConfigError("MU564", formatted("the backend of the device lacks {}, and {} cannot travel as another dtype; "
                                         "convert the tensor, or take device_backend none",
                                         name_of(dtype), describe(operation)));
}

std::shared_ptr<DeviceWork> DeviceCollectives::start(Operation operation, PendingOperations* pending) {
  auto started = std::make_shared<DeviceWork>(std::move(operation), backend_->getRank(), backend_->getSize());
  const Operation& given = started->operation_;
  // Added before the backend is called, because the call itself may hang while the backend connects.
  if (pending) started->pending_ = pending->add(given);
  const at::NoGradGuard no_grad;
  const device::DeviceScope scope(kOwnDevice, described_tensor(given).device());
  if (lacks_dtype(given)) started->converted_ = converted(given);
  started->work_ = call_backend(*backend_, started->converted_ ? *started->converted_ : given, started->kept_);
  if (pending) started->pending_->started(started->work_);
  return started;
}

std::string DeviceCollectives::error() const {
  try {
    switch (backend_->getError()) {
      case c10d::ErrorType::SUCCESS: return {};
      case c10d::ErrorType::TIMEOUT: return "an operation timed out";
      case c10d::ErrorType::COMM_ERROR: return "its communicator has failed";
      case c10d::ErrorType::REMOTE_ERROR: return "another rank has failed";
    }
  } catch (const std::exception&) {
    // Most backends do not report errors.
  }
  return {};
}

std::unique_ptr<DeviceCollectives> DeviceCollectives::split(const std::vector<int>& ranks,
                                                            const std::string& name) const {
  auto part = custom_.split(backend_, ranks, name);
  if (!part) return nullptr;
  return std::make_unique<DeviceCollectives>(std::move(part), custom_);
}

}  // namespace muster::comm
