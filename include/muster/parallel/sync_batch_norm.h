#pragma once

#include "muster/dist/communicator.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>

namespace muster {

/// Batch normalization whose statistics are those of all ranks' batches, in training; parts may differ in size and be empty.
/// As torch::batch_norm with training on, and differentiable; gradients of weight and bias are this rank's share, as any
/// parameter's. Input: (N, C, ...). Running statistics, where defined, are updated in place.
/// Collective: forward and backward.
at::Tensor sync_batch_norm(const dist::Communicator& group, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& running_mean, const at::Tensor& running_var, double momentum, double eps);

/// Lets every BatchNorm1d, 2d and 3d in the module take its statistics in training from all ranks, as Python's
/// SyncBatchNorm.convert_sync_batchnorm, but in place: the modules, their parameters and buffers, their names and the user's own
/// handles stay, and code that calls the old members does the new thing. In evaluation nothing changes. Returns how many
/// were converted. In a world of one nothing is done.
///
/// To be called after the module is on its device: before prepare() where the module is there already, or after it. Moving it
/// afterwards undoes it. LibTorch refuses, before this is asked, a training batch with a single value per channel on a rank.
/// Requires: the group outlives the module's last forward in training.
/// Throws: ConfigError (MU165) for a normalization without running statistics; UsageError (MU160) where the process does not
/// allow the key fallback.
/// Collective.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const dist::Communicator& group);

}  // namespace muster
