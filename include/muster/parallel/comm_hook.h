#pragma once

#include "muster/dist/communicator.h"
#include "muster/parallel/options.h"
#include "muster/tree/state.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace muster::parallel {

/// Gradients that travel together. Each rank has multiplied its own by 1/size, so what is wanted is their sum.
struct GradientBucket {
  size_t index = 0;                        ///< of the order in which buckets start
  bool last = false;                       ///< of this backward
  at::Tensor flat;                         ///< 1-D: all gradients, each padded with zeros; the sum goes here
  std::vector<at::Tensor> matrices;        ///< of each gradient with two dimensions or more, its place in `flat` as rows x columns
  std::vector<at::Tensor> rest;            ///< of all others, 1-D
};

/// Communicates the gradients of a reducer in place of its own all_reduce. One object serves one model.
/// Both calls are made below autograd, in the same order on every rank: start() for each bucket as it fills, while backward
/// goes on, then what start() returned for each bucket, in the order of their start, when backward has ended.
class CommHook {
 public:
  using Finish = std::function<void()>;
  virtual ~CommHook() = default;
  /// Starts the communication of a bucket. What it returns waits for it and leaves the sum in bucket.flat, the same on every
  /// rank; it may communicate more. The bucket outlives it. Collective.
  virtual Finish start(const GradientBucket& bucket, const dist::Communicator& group) = 0;
  /// For plan(): "bf16".
  virtual std::string_view name() const = 0;

  /// What this rank's hook carries from one backward to the next, such as errors that it will make up for; nothing by default.
  virtual State save_state() const { return {}; }
  /// Takes it back. Throws: CheckpointError (MU208, MU209) if it is none of such a hook; nothing is changed then.
  virtual void load_state(const State&) {}
};

/// A hook from a function with the arguments and the result of CommHook::start.
std::shared_ptr<CommHook> make_comm_hook(std::function<CommHook::Finish(const GradientBucket&, const dist::Communicator&)> start);

/// Gradients travel in this dtype, half the bytes of float32, and are summed in it.
std::shared_ptr<CommHook> make_cast_hook(at::ScalarType dtype);

/// PowerSGD (Vogels, Karimireddy and Jaggi 2019): each gradient M of n x m elements travels as P = M Q and Q = M^T P, with as many
/// columns as `rank`, P made orthonormal between. Vectors, and matrices that it would not make smaller, travel whole.
/// A round whose gradients are not all finite leaves no trace in what it carries on.
/// Throws: ConfigError (MU158) for impossible options.
std::shared_ptr<CommHook> make_power_sgd_hook(const PowerSgdOptions& options);

/// The hook that the options name; nullptr for "none".
/// Throws: ConfigError (MU157) for an unknown name, or for both a name and a hook.
std::shared_ptr<CommHook> chosen_comm_hook(const DdpOptions& options);

}  // namespace muster::parallel
