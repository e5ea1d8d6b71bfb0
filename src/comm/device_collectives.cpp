#include "comm/device_collectives.h"

#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/backend_calls.h"
#include "comm/rank_index.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr device::SyncPoint kOwnDevice{"collectives: the backend is called on the device of the tensors"};
constexpr device::SyncPoint kResult{"collectives: the current stream reads after the operation"};
constexpr device::SyncPoint kFinished{"collectives: another stream reads after a mean"};

c10::intrusive_ptr<c10d::Backend> required(c10::intrusive_ptr<c10d::Backend> made) {
  if (made) return made;
  throw ConfigError("MU560", "the factory returned none; let it return a c10d::Backend on every rank, or throw");
}

}  // namespace

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

c10::intrusive_ptr<c10d::Backend> DeviceBackendFactory::make(const std::string& name, int rank, int size) const {
  return make_on_all_ranks(agreement(name, rank, size, "group " + name),
                           [&] { return required(entry.make(store(name), rank, size, options)); });
}

c10::intrusive_ptr<c10d::Backend> DeviceBackendFactory::split(const c10::intrusive_ptr<c10d::Backend>& parent,
                                                              const std::vector<int>& ranks,
                                                              const std::string& name) const {
  const int rank = parent->getRank(), size = static_cast<int>(ranks.size()), own = rank_index(ranks, rank);
  const bool is_member = own < size;
  if (!entry.split) return is_member ? make(name, own, size) : nullptr;
  return make_on_all_ranks(agreement(name, rank, parent->getSize(), "the parent of group " + name), [&] {
    auto subgroup = entry.split(parent, store(name), ranks, options);
    return is_member ? required(std::move(subgroup)) : nullptr;
  });
}

BackendAgreement DeviceBackendFactory::agreement(const std::string& name, int rank, int size, std::string group) const {
  const auto kind = c10::DeviceTypeName(entry.device, /*lower_case=*/true);
  return {c10::make_intrusive<c10d::PrefixStore>("agreement", store(name)),
          rank,
          size,
          options.rendezvous_timeout,
          std::move(group),
          formatted("the backend {} for {}", entry.name, kind)};
}

DeviceCollectives::DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, DeviceBackendFactory maker)
    : backend_(std::move(backend)), maker_(std::move(maker)) {}

bool DeviceCollectives::takes(const Operation& operation, c10::DeviceType device) const {
  return device == maker_.entry.device && has_backend_call(operation.kind);
}

void DeviceCollectives::require_dtype(const Operation& operation) const {
  if (ConvertedOperation::is_needed(operation, maker_.entry.without)) ConvertedOperation::require_way(operation);
}

std::shared_ptr<DeviceWork> DeviceCollectives::start(Operation operation) {
  auto started = std::make_shared<DeviceWork>(std::move(operation), backend_->getSize());
  started->rank_ = backend_->getRank();
  const at::NoGradGuard no_grad;
  const device::DeviceScope scope(kOwnDevice, described_tensor(started->operation_).device());
  if (ConvertedOperation::is_needed(started->operation_, maker_.entry.without))
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
  auto part = maker_.split(backend_, ranks, name);
  if (!part) return nullptr;
  return std::make_unique<DeviceCollectives>(std::move(part), maker_);
}

}  // namespace muster::comm
