#include "rank_placement.h"

#include "base/log.h"
#include "comm/agreement.h"
#include "device/device.h"
#include "device/vector_math.h"
#include "host_tuning.h"
#include "launcher/devices.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/rendezvous.h"
#include "muster/launcher/launch.h"

namespace muster::runtime {

RankPlacement::RankPlacement(const RuntimeOptions& options)
    : options_(options), cluster_(read_cluster_environment(Environment::of_process(), options_.cluster_reader)),
      device_(c10::kCPU) {
  choose_device();
}

void RankPlacement::choose_device() {
  device_ =
      device::choose(options_.accelerator, cluster_.device_index >= 0 ? cluster_.device_index : cluster_.local_rank);
}

int RankPlacement::processes_wanted() const {
  if (!options_.devices || options_.devices->text() == "auto") return 0;
  return launcher::choose_devices({options_.accelerator, options_.devices->text(), device::count()}).count;
}

const comm::Communicator& RankPlacement::connect() {
  LaunchOptions how;
  how.cluster_reader = options_.cluster_reader;
  how.nodes = options_.devices ? options_.num_nodes : cluster_.nodes;
  how.processes = processes_wanted();
  cluster_ = muster::launch(how);
  choose_device();
  device::set_current(device_);  // only now: this opens the device, and a process that forks must not have opened one
  if (cluster_.world_size > 1) log::set_rank(cluster_.rank);
  share_cores(cluster_);
  device::initialize_vector_math();
  GroupOptions limits;
  limits.backend = options_.backend;
  limits.rendezvous_timeout = limits.timeout = options_.timeout;
  limits.two_level_sums = options_.two_level_sums;
  if (cluster_.world_size > 1) {
    device_backend_ = comm::find_device_backend(options_.device_backend, device_.type());
    limits.device_backend = device_backend_.entry;
  }
  report_ = cluster::Report::open(cluster_.report_fd);
  group_ = comm::connect(cluster_, limits);
  return group_;
}

void RankPlacement::require_launched() const {
  if (!launched_)
    throw UsageError("MU172", "the program asks for " + options_.devices->text() +
                                  " devices and has one process so far; call launch() before this");
}

void RankPlacement::leave_group() noexcept {
  if (std::uncaught_exceptions() <= exceptions_before_ || !launched_ || cluster_.world_size == 1) return;
  report_.left_by_exception();
  try {
    group_.abort("an exception left the scope of its Accelerator or Fabric; look for it in the output of that rank");
  } catch (const std::exception&) {
    // Out of memory: the other ranks notice when the connections close.
  }
}

const comm::Communicator& RankPlacement::group() const {
  require_launched();
  return group_;
}

/// How ranks exchange tensors of the accelerator.
std::string RankPlacement::device_tensors_note() const {
  const auto backend = comm::device_backend_of(group_);
  return formatted("tensors on {}: {}\n", device_.str(),
                   backend.empty() ? "through pinned host memory, for which the host waits; " + device_backend_.note
                                   : "over the backend " + backend + " " + device_backend_.note +
                                         ", on streams; operations whose shapes may differ between ranks through host "
                                         "memory");
}

std::string RankPlacement::describe() const {
  std::string text = formatted("ranks: {} on {} node(s), this is rank {}; launcher: {}\n", cluster_.world_size,
                               cluster_.nodes, cluster_.rank, to_string(cluster_.launcher));
  const std::string reason(group_.backend_reason());
  text += formatted("device: {}; backend: {}{}\n", device_.str(), group_.backend(),
                    reason.empty() ? "" : " (" + reason + ")");
  if (!device_.is_cpu() && group_.size() > 1) text += device_tensors_note();
  return text;
}

}  // namespace muster::runtime
