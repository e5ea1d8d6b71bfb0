#include "comm/device_side.h"

#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "comm/backend_calls.h"
#include "comm/rank_index.h"

namespace muster::comm {
namespace {

constexpr device::Site kOwnDevice{"collectives: the backend is called on the device of the tensors"};
constexpr device::Site kResult{"collectives: the current stream reads after the operation"};
constexpr device::Site kMean{"collectives: another stream reads after a mean"};

}  // namespace

DeviceWork::DeviceWork(Operation operation, int size) : operation_(std::move(operation)), size_(size) {}

void DeviceWork::wait() {
  const at::Device device = described_tensor(operation_).device();
  // Without a time-out, which would make the host wait, too.
  if (work_ && device::passes(kResult, device::Ordering::stream_wait)) work_->wait();
  if (std::exchange(waited_, true)) return device::stream_wait(kMean, mean_, device);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  finish_mean(operation_, rank_, size_);
  if (operation_.reduce == ReduceOp::mean) mean_ = device::record(device);
  kept_.clear();
}

DeviceSide::DeviceSide(c10::intrusive_ptr<c10d::Backend> backend, c10::DeviceType device, SplitBackend split)
    : backend_(std::move(backend)), device_(device), split_(std::move(split)) {}

bool DeviceSide::takes(const Operation& operation, c10::DeviceType device) const {
  return device == device_ && has_backend_call(operation.kind);
}

std::shared_ptr<DeviceWork> DeviceSide::start(Operation operation) {
  auto started = std::make_shared<DeviceWork>(std::move(operation), backend_->getSize());
  started->rank_ = backend_->getRank();
  const at::NoGradGuard no_grad;
  const device::DeviceScope scope(kOwnDevice, described_tensor(started->operation_).device());
  started->work_ = call_backend(*backend_, started->operation_, started->kept_);
  return started;
}

void DeviceSide::abort() noexcept {
  try {
    backend_->abort();
  } catch (const std::exception&) {
    // A backend without abort ends its waits by its own time-out.
  }
}

std::unique_ptr<DeviceSide> DeviceSide::split(const std::vector<int>& ranks, const std::string& name) const {
  const auto new_rank = rank_index(ranks, backend_->getRank());
  return std::make_unique<DeviceSide>(split_(name, new_rank, static_cast<int>(ranks.size())), device_, split_);
}

}  // namespace muster::comm
