#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/rank_index.h"
#include "comm/staging.h"
#include "comm/words.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {

std::string Group::device_backend() const { return device_side_ ? device_side_->name() : std::string(); }

bool Group::stays_on_host(const Operation& operation) const {
  return device_of(operation).is_cpu() || collectives_->takes_device_tensors();
}

bool Group::goes_to_device_side(const Operation& operation) const {
  return device_side_ && device_side_->takes(operation, device_of(operation).type());
}

std::shared_ptr<DeviceWork> Group::start_on_device(Operation operation) {
  check_alive();
  const auto asked = Clock::now();
  operation.sequence = device_sequence_++;
  note_on_device(operation);
  try {
    auto work = device_side_->start(operation);
    notify_observers(operation, asked);
    return work;
  } catch (const std::exception& error) {
    fail({"MU061",
          formatted("{} could not start on rank {} of group {}: {}", describe(operation), rank_, identity_.name,
                    short_error_text(error.what(), 500)),
          -1});
  }
}

void Group::note_on_device(const Operation& operation) {
  if (!is_point_to_point(operation.kind))
    identity_.ledger->note(identity_.name, job_ranks_, make_header(operation, nullptr, 0));
}

void Group::compare_device_operations(const Communicator& through) {
  if (!device_side_) return;
  const auto difference = find_disagreement(job_ranks_, through.all_gather_bytes(identity_.ledger->digests()));
  if (!difference) return;
  const auto operations = through.all_gather_bytes(identity_.ledger->operations_of(difference->group));
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

}  // namespace muster::comm
