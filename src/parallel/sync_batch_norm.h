#pragma once  // for other rooms

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "muster/comm/communicator.h"

namespace muster {

/// Batch normalization with the statistics of all ranks' batches, in training. The ranks' batches may differ in size
/// and be empty. Otherwise like torch::batch_norm with training on, and differentiable; gradients of weight and bias
/// are this rank's share, as for any parameter. Input: (N, C, ...). Running statistics, where defined, are updated in
/// place.
/// Collective: forward and backward.
at::Tensor sync_batch_norm(const comm::Communicator& group, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean, const at::Tensor& running_var,
                           double momentum, double eps);

/// Makes every BatchNorm1d, 2d and 3d in the module compute its training statistics over all ranks, like Python's
/// SyncBatchNorm.convert_sync_batchnorm, but in place: the modules, their parameters and buffers, their names and the
/// user's handles stay, and code that calls the existing members gets the synchronized behaviour. Evaluation is
/// unchanged. Returns the number of converted modules. Does nothing in a world of one.
///
/// Call it after the module was moved to its device: before prepare() if the module is there already, otherwise after
/// prepare(). Moving the module later undoes the conversion. LibTorch refuses, before this code runs, a training batch
/// with a single value per channel on a rank.
/// Requires: the group outlives the module's last forward in training.
/// Throws: ConfigError (MU165) for a normalization without running statistics; UsageError (MU160) if the process does
/// not allow the key fallback.
/// Collective.
/// Why: docs/decisions/0051-batch-norm-is-synchronised-in-place.md.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Communicator& group);

namespace parallel {
/// Why a forward of the module needs a batch on every rank, as text that follows "since": convert_sync_batchnorm()
/// converted one of its batch normalizations. Empty if it needs none.
std::string need_of_every_batch(const torch::nn::Module& module);
}  // namespace parallel

}  // namespace muster
