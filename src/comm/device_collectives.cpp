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

}  // namespace

bool ConvertedOperation::is_needed(const Operation& operation, const std::vector<c10::ScalarType>& without) {
  const auto& tensor = described_tensor(operation);
  return !without.empty() && tensor.defined() &&
         std::find(without.begin(), without.end(), tensor.scalar_type()) != without.end();
}

void ConvertedOperation::require_way(const Operation& operation) {
  const auto dtype = described_tensor(operation).scalar_type();
  if (reduces(operation.kind) && dtype != at::kShort && dtype != at::kBool)
    throw ConfigError("MU564", formatted("the backend of the device lacks {}, and {} cannot travel as another dtype; "
                                         "convert the tensor, or take device_backend none",
                                         name_of(dtype), describe(operation)));
}

ConvertedOperation::ConvertedOperation(const Operation& operation) : converted_(operation) {
  const auto dtype = described_tensor(operation).scalar_type();
  const bool widens = reduces(operation.kind) && dtype == at::kShort;
  const auto convert = widens ? widened : as_bytes;
  converted_.in = convert(operation.in);
  // One converted tensor if the operation has one: then it works in place, or on a part of its result.
  converted_.out = convert(operation.out);
  if (dtype == at::kBool) converted_.reduce = of_bits(operation.reduce);
}

void ConvertedOperation::finish(const Operation& operation, bool has_result) const {
  // Bytes are a view of the operation's own memory and need no copy.
  if (has_result && operation.out.defined() && !converted_.out.is_alias_of(operation.out))
    at::Tensor(operation.out).copy_(converted_.out);
}

constexpr device::SyncPoint kEnded{"watch: whether the device has ended an operation"};

PendingOperation::PendingOperation(const Operation& operation)
    : header_(make_header(operation, nullptr, 0)), asked_(std::chrono::steady_clock::now()) {}

void PendingOperation::started(c10::intrusive_ptr<c10d::Work> work) {
  const base::Lock lock(mutex_);
  is_started_ = true;
  work_ = std::move(work);
}

void PendingOperation::waited(at::Device device) {
  const base::Lock lock(mutex_);
  after_ = device::record(device);
  work_.reset();
}

bool PendingOperation::has_ended() const {
  const base::Lock lock(mutex_);
  if (after_) return device::query(kEnded, after_);
  return is_started_ && (!work_ || work_->isCompleted());
}

std::shared_ptr<PendingOperation> PendingOperations::add(const Operation& operation) {
  auto added = std::make_shared<PendingOperation>(operation);
  const base::Lock lock(mutex_);
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
  const base::Lock lock(mutex_);
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
  const base::Lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  while (drop_ended(now)) {}
  if (operations_.empty()) return std::nullopt;
  return operations_.front()->header();
}

void PendingOperations::clear() {
  const base::Lock lock(mutex_);
  operations_.clear();
}

constexpr device::SyncPoint kOwnDevice{"collectives: the backend is called on the device of the tensors"};
constexpr device::SyncPoint kResult{"collectives: the current stream reads after the operation"};
constexpr device::SyncPoint kFinished{"collectives: another stream reads after a mean"};

DeviceWork::DeviceWork(Operation operation, int size) : operation_(std::move(operation)), size_(size) {}

bool DeviceWork::has_result() const { return operation_.kind != OperationKind::reduce || rank_ == operation_.root; }

void DeviceWork::wait() {
  const at::Device device = described_tensor(operation_).device();
  // Without a timeout, because a timeout would make the host wait, too.
  if (work_ && device::passes(kResult, device::SyncKind::stream_wait)) work_->wait();
  if (std::exchange(waited_, true)) return device::stream_wait(kFinished, finished_, device);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  if (converted_) converted_->finish(operation_, has_result());
  finish_mean(operation_, rank_, size_);
  if (operation_.reduce == ReduceOp::mean || converted_) finished_ = device::record(device);
  kept_.clear();
  if (pending_) pending_->waited(device);
}

DeviceCollectives::DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, CustomBackend custom)
    : backend_(std::move(backend)), custom_(std::move(custom)) {}

bool DeviceCollectives::takes(const Operation& operation, c10::DeviceType device) const {
  return device == custom_.entry.device && has_backend_call(operation.kind);
}

void DeviceCollectives::require_dtype(const Operation& operation) const {
  if (ConvertedOperation::is_needed(operation, custom_.entry.without)) ConvertedOperation::require_way(operation);
}

std::shared_ptr<DeviceWork> DeviceCollectives::start(Operation operation) {
  auto started = std::make_shared<DeviceWork>(std::move(operation), backend_->getSize());
  started->rank_ = backend_->getRank();
  const at::NoGradGuard no_grad;
  const device::DeviceScope scope(kOwnDevice, described_tensor(started->operation_).device());
  if (ConvertedOperation::is_needed(started->operation_, custom_.entry.without))
    started->converted_.emplace(started->operation_);
  const auto& given = started->converted_ ? started->converted_->converted() : started->operation_;
  started->work_ = call_backend(*backend_, given, started->kept_);
  return started;
}

std::shared_ptr<DeviceWork> DeviceCollectives::start(Operation operation, PendingOperations& pending) {
  // Added before the backend is called, because the call itself may hang while the backend connects.
  auto added = pending.add(operation);
  auto started = start(std::move(operation));
  added->started(started->work_);
  started->pending_ = std::move(added);
  return started;
}

void DeviceCollectives::abort() noexcept { abort_backend(*backend_); }

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
