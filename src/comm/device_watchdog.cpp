#include "comm/device_watchdog.h"

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "base/log.h"
#include "muster/base/format.h"

namespace muster::comm {

using std::chrono::milliseconds;

DeviceWatchdog::DeviceWatchdog(CauseExchange::Setup setup, std::optional<at::Device> device)
    : device_(device), exchange_(CauseExchange::start(std::move(setup))), thread_([this] { run(); }) {}

DeviceWatchdog::~DeviceWatchdog() {
  exchange_->leave();
  thread_.join();
}

milliseconds DeviceWatchdog::query_after(milliseconds timeout) { return std::min(timeout / 4, milliseconds(5000)); }

void DeviceWatchdog::add(Watched& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
  if (cause_) group.end(*cause_);
}

void DeviceWatchdog::remove(Watched& group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(std::remove(groups_.begin(), groups_.end(), &group), groups_.end());
}

void DeviceWatchdog::run() {
  const c10::OptionalDeviceGuard on_device(device_);
  for (bool suspects = false;;) {
    const auto cause = exchange_->wait(milliseconds(200));
    if (exchange_->has_left()) return;
    if (cause) return end_all(*cause);
    if (suspects) continue;
    if (auto found = suspicion()) {
      exchange_->suspect(std::move(*found));
      suspects = true;
    }
  }
}

std::optional<DeviceSuspicion> DeviceWatchdog::suspicion() {
  const std::lock_guard lock(mutex_);
  for (auto* group : groups_)
    if (auto found = group->suspicion(std::chrono::steady_clock::now())) return found;
  return std::nullopt;
}

void DeviceWatchdog::end_all(const DeviceCause& cause) {
  // Logged here, because a program without a later operation would end with a meaningless number and no message.
  log::error(formatted("{}: {}", cause.id, cause.text));
  const std::lock_guard lock(mutex_);
  cause_ = cause;
  for (auto* group : groups_) group->end(cause);
}

}  // namespace muster::comm
