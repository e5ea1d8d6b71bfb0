#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "comm/device_agreement.h"
#include "comm/error_text.h"
#include "comm/group.h"
#include "comm/rank_index.h"
#include "comm/staging.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {

std::string Group::device_backend() const { return device_collectives_ ? device_collectives_->name() : std::string(); }

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
  // Messages are numbered apart: ranks need not agree on them.
  operation.sequence = is_point_to_point(operation.kind) ? device_messages_++ : device_sequence_++;
  note_on_device(operation);
  try {
    auto work =
        identity_.watch ? device_collectives_->start(operation, pending_) : device_collectives_->start(operation);
    notify_observers(operation, asked);
    return work;
  } catch (const std::exception& error) {
    fail({"MU061",
          formatted("{} could not start on rank {} of group {}: {}", describe(operation), rank_, shown_name_,
                    short_error_text(error.what(), 500)),
          -1});
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
  if (has_failed_.load(std::memory_order_acquire)) return std::nullopt;
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
  if (cause.rank >= 0 && cause.rank != job_ranks_.at(static_cast<std::size_t>(rank_)))
    identity_.report.lost(cause.rank, cause.id + ": " + cause.text);
  if (keep({cause.id, cause.text, -1})) collectives_->abort(cause.id + ": " + cause.text);
  abort_device();
}

void Group::note_on_device(const Operation& operation) {
  if (!is_point_to_point(operation.kind))
    identity_.flight_recorder->note(identity_.name, make_header(operation, nullptr, 0));
}

void Group::compare_device_operations(const Communicator& through) {
  if (!device_collectives_) return;
  const auto difference =
      find_disagreement(identity_.name, job_ranks_, through.all_gather_bytes(identity_.flight_recorder->digests()));
  if (!difference) return;
  const auto operations = through.all_gather_bytes(identity_.flight_recorder->operations_of(difference->group));
  const auto of = [&](int rank) { return operations.at(static_cast<std::size_t>(rank_index(job_ranks_, rank))); };
  fail({"MU050",
        formatted("{} of the device's operations in group {}. All ranks must call the same operations in the same "
                  "order, with equal shapes and dtypes.",
                  describe_difference(difference->one, of(difference->one), difference->other, of(difference->other)),
                  difference->group),
        -1});
}

void Group::stage(Operation& operation) {
  const at::Device device = device_of(operation);
  if (!staging_stream_ || staging_stream_->device() != device) staging_stream_ = device::stream_from_pool(device);
  operation.staging = std::make_shared<Staging>(operation, rank_, staging_stream_);
}

std::string device_backend_of(const Communicator& group) { return group.group()->device_backend(); }

void require_same_device_operations(const Communicator& group) {
  group.group()->compare_device_operations(group.internal("the device's operations"));
}

}  // namespace muster::comm
