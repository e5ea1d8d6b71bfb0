#include "rank_placement.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "base/log.h"
#include "comm/agreement.h"
#include "device/device.h"
#include "hook/half_lstm.h"
#include "launcher/devices.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/rendezvous.h"
#include "muster/launcher/launch.h"
#include "muster/precision/grad_scaler.h"
#include "muster/precision/policy.h"
#include "precision/emulation.h"

namespace muster::runtime {
namespace {

/// Divides the cores of a node among its ranks, unless OMP_NUM_THREADS says how many threads each gets.
void share_cores(const ClusterEnvironment& cluster) {
  if (cluster.local_world_size == 1) return;
  // launch() may have set the variable after LibTorch was loaded and read it.
  const auto threads = Environment::of_process().find("OMP_NUM_THREADS");
  // Under a launcher that sets no number of threads, every rank would use all cores.
  at::set_num_threads(threads ? std::max(1, std::atoi(threads->c_str()))
                              : std::max(1, at::get_num_threads() / cluster.local_world_size));
}

}  // namespace

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

std::string RankPlacement::describe() const {
  std::string text = formatted("ranks: {} on {} node(s), this is rank {}; launcher: {}\n", cluster_.world_size,
                               cluster_.nodes, cluster_.rank, to_string(cluster_.launcher));
  const std::string reason(group_.backend_reason());
  text += formatted("device: {}; backend: {}{}\n", device_.str(), group_.backend(),
                    reason.empty() ? "" : " (" + reason + ")");
  if (device_.is_cpu() || group_.size() == 1) return text;
  const auto backend = comm::device_backend_of(group_);
  return text +
         formatted("tensors on {}: {}\n", device_.str(),
                   backend.empty()
                       ? "through pinned host memory, for which the host waits; " + device_backend_.note
                       : "over the backend " + backend + " " + device_backend_.note +
                             ", on streams; operations whose shapes may differ between ranks through host memory");
}

void choose_kernels(const RuntimeOptions& options, c10::Device device, bool warns) {
  auto& context = at::globalContext();
  if (options.deterministic) context.setDeterministicAlgorithms(true, options.deterministic.warns());
  // Without this variable cuBLAS products are not reproducible, and LibTorch refuses them.
  if (options.deterministic && device.is_cuda())
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // NOLINT(concurrency-mt-unsafe)
  if (options.deterministic && options.benchmark.value_or(false) && warns)
    log::warning(
        "MU572",
        ": deterministic and benchmark are both set: cuDNN takes the kernel that was the fastest in a trial, which "
        "may be another one in each run, so results may differ between runs; take one of the two out");
  if (options.benchmark) context.setBenchmarkCuDNN(*options.benchmark);
  else if (options.deterministic) context.setBenchmarkCuDNN(false);
  if (options.matmul_precision != MatmulPrecision("auto"))
    context.setFloat32MatmulPrecision(std::string(options.matmul_precision.text()));
}

std::string keep_near_device(const comm::Communicator& group, const device::NearCores& near, const std::string& root) {
  std::vector<std::string> messages{device::near_cores_message(near, root)};
  if (group.size() > 1)
    messages = group.internal("the cores near the devices of ranks").all_gather_bytes(messages.front());
  const auto share =
      near.reason.empty() ? device::share_of_rank(messages, static_cast<size_t>(group.rank()), root) : near;
  auto reason = share.reason;
  if (reason.empty()) reason = device::run_on(share.cores);
  if (!reason.empty()) return "affinity: threads run where the system lets them, since " + reason;
  const auto cores = static_cast<int>(share.cores.size());
  if (at::get_num_threads() > cores) at::set_num_threads(cores);
  return formatted("affinity: threads run on the cores {}, near the device", device::core_list(share.cores));
}

void HostTuning::choose_cores(const RuntimeOptions& options, const comm::Communicator& group, c10::Device device) {
  // Without a CUDA runtime no rank knows where its device is, so there is nothing to exchange.
  if (!at::detail::getCUDAHooks().hasCUDART()) return;
  const auto near =
      options.affinity && !device.is_cpu()
          ? device::near_cores(device::pci_address(device), device::own_cores(), Environment::of_process())
          : device::NearCores{{}, "the option affinity is off"};
  const auto note = keep_near_device(group, near);
  if (!device.is_cpu()) notes_.push_back(note);
}

void HostTuning::resolve_precision(const RuntimeOptions& options, const ClusterEnvironment& cluster,
                                   c10::Device device) {
  const auto& precision = options.precision;
  precision::require_supported(precision, device);
  if (precision::scales_losses(precision) && options.grad_scaler.enabled)
    precision::GradScaler check(options.grad_scaler);
  if (!device.is_cpu()) return;
  if (precision::is_mixed(precision)) hook::run_half_lstm_in_float();
  const auto emulation = precision::emulation_on_cpu(precision, device::multiplies_bfloat16());
  if (!emulation) return;
  notes_.push_back("precision: " + *emulation);
  if (cluster.is_main()) log::warning(notes_.back());
}

void HostTuning::choose_memory(const RuntimeOptions& options, const ClusterEnvironment& cluster, c10::Device device) {
  const bool launched = cluster.launcher != LauncherKind::none;
  kept_memory_ = device.is_cpu() ? device::choose_kept_memory(options.keep_memory, launched) : device::KeptMemory{};
  if (!device.is_cpu()) return;
  notes_.push_back(
      kept_memory_.kept
          ? formatted(
                "memory: what tensors free is kept for the next step ({}); the process stays as large as at its peak, "
                "about a fifth above what its tensors hold",
                kept_memory_.reason)
          : formatted("memory: what tensors free goes back to the system ({}); steps with large tensors are slower",
                      kept_memory_.reason));
}

}  // namespace muster::runtime
