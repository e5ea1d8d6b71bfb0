#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/runtime/detail/options.h"
#include "muster/strategy/options.h"

namespace muster {

/// Options of muster::Fabric, with Fabric's names and defaults; what Fabric does not have is as in AcceleratorOptions.
struct FabricOptions {
  /// "auto", "cpu", "cuda" or "gpu".
  std::string accelerator = "auto";
  bool affinity = true;                ///< as in AcceleratorOptions
  std::string backend = "auto";        ///< as in AcceleratorOptions
  std::optional<bool> benchmark = {};  ///< as in AcceleratorOptions
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};
  ClusterReader cluster_reader = {};
  Deterministic deterministic = false;
  DeviceBackend device_backend = {};  ///< as in AcceleratorOptions
  Devices devices = {};
  std::optional<bool> dispatch_batches = {};
  /// Submodules whose parameters stay in float32 where the precision casts the others; see in_fp32().
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  KeepMemory keep_memory = "auto";
  MatmulPrecision matmul_precision = "auto";
  int num_nodes = 1;
  Precision precision = "32-true";
  ProjectOptions project = {};
  Strategy strategy = "auto";
  SyncedGenerators synced_generators = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;  ///< as in AcceleratorOptions
};

/// How Fabric clips: set exactly one of clip_val and max_norm.
struct ClipGradientsOptions {
  std::optional<double> clip_val = {};
  bool error_if_nonfinite = true;
  std::optional<double> max_norm = {};
  double norm_type = 2.0;
};

/// Options of the runtime behind Accelerator and Fabric; presets.h derives them from the options of either.
struct RuntimeOptions {
  std::string accelerator = "auto";
  bool affinity = true;
  std::string backend = "auto";
  std::optional<bool> benchmark = {};
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};
  ClusterReader cluster_reader = {};
  Deterministic deterministic = false;
  DeviceBackend device_backend = {};
  /// Unset: as many as the launcher started. Otherwise launch() starts them.
  std::optional<Devices> devices = {};
  std::optional<bool> dispatch_batches = {};
  bool even_batches = true;
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  KeepMemory keep_memory = "auto";
  MatmulPrecision matmul_precision = "auto";
  int num_nodes = 1;
  Precision precision = "32-true";
  ProjectOptions project = {};
  bool split_batches = false;
  bool step_scheduler_with_optimizer = true;
  Strategy strategy = "auto";
  SyncedGenerators synced_generators = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;
};

}  // namespace muster
