#include "machine_use.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/Parallel.h>

#include "muster/base/detail/environment.h"
#include "muster/base/detail/log.h"
#include "muster/base/format.h"
#include "muster/device/detail/processor.h"
#include "muster/hook/detail/half_lstm.h"
#include "muster/precision/detail/emulation.h"
#include "muster/precision/detail/grad_scaler.h"
#include "muster/precision/detail/policy.h"

namespace muster::runtime {

void share_cores(const ClusterEnvironment& cluster) {
  if (cluster.local_world_size == 1) return;
  // LibTorch read the variable when it was loaded, which launch() may have set since.
  const auto threads = Environment::of_process().find("OMP_NUM_THREADS");
  // A launcher that does not say how many threads a rank may use would give each of them all cores.
  at::set_num_threads(threads ? std::max(1, std::atoi(threads->c_str()))
                              : std::max(1, at::get_num_threads() / cluster.local_world_size));
}

void MachineUse::resolve_precision(const RuntimeOptions& options, const ClusterEnvironment& cluster,
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

void MachineUse::choose_memory(const RuntimeOptions& options, const ClusterEnvironment& cluster, c10::Device device) {
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
