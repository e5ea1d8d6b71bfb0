#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/parallel/options.h"
#include "muster/tree/state.h"

namespace muster::parallel {

/// A bucket of gradients that are communicated together. Each rank has multiplied its gradients by 1/size, so the hook
/// has to compute their sum.
struct GradientBucket {
  size_t index = 0;                  ///< position in the order in which buckets start
  bool last = false;                 ///< the last bucket of this backward
  at::Tensor flat;                   ///< 1-D: all gradients, each padded with zeros; the sum goes here
  std::vector<at::Tensor> matrices;  ///< each gradient with at least two dimensions: its view of `flat`, as rows
                                     ///< x columns
  std::vector<at::Tensor> rest;      ///< the views of all other gradients, 1-D
  std::vector<std::string> names;    ///< parameter names, in the order of their gradients in `flat`
};

/// Communicates the gradients of a replicated model in place of its all_reduce. One object serves one model. See
/// docs/decisions/0052-communication-hooks.md.
/// Both calls run below autograd, in an order that is equal on all ranks. The reducer calls start() for each bucket as
/// it fills, while backward continues. When backward has ended, it calls the function that start() returned for each
/// bucket, in the order of the starts. On a device both run on a stream of the reducer, after the gradients, and the
/// program waits for that stream.
class CommHook {
 public:
  using Finish = std::function<void()>;
  virtual ~CommHook() = default;
  /// Starts the communication of a bucket. The returned function waits for it and leaves the sum in bucket.flat, equal
  /// on every rank; it may communicate more. The bucket outlives that function. Collective.
  virtual Finish start(const GradientBucket& bucket, const comm::Communicator& group) = 0;
  /// The name that plan() shows: "bf16".
  virtual std::string_view name() const = 0;

  /// The state that this rank's hook keeps between backwards, such as the error for error feedback; empty by default.
  virtual State state_dict() const { return {}; }
  /// Restores that state. Throws: CheckpointError (MU208, MU209), changing nothing, if it is not the state of such a
  /// hook.
  virtual void load_state_dict(const State&) {}
};

/// Makes a hook from a function with the arguments and the result of CommHook::start.
std::shared_ptr<CommHook> make_comm_hook(
    std::function<CommHook::Finish(const GradientBucket&, const comm::Communicator&)> start);

/// Makes a hook that communicates and sums gradients in this dtype, such as bfloat16: half the bytes of float32.
std::shared_ptr<CommHook> make_cast_hook(at::ScalarType dtype);

/// Makes a hook for PowerSGD (Vogels, Karimireddy and Jaggi 2019): for each gradient M of n x m elements, P = M Q and Q
/// = M^T P are communicated, each with `rank` columns; P is made orthonormal in between. Vectors are communicated
/// uncompressed, and so are matrices that compression would not make smaller. A reduction whose gradients are not all
/// finite does not change the hook's state.
/// Throws: ConfigError (MU158) for impossible options.
std::shared_ptr<CommHook> make_power_sgd_hook(const PowerSgdOptions& options);

/// The hook that the options select; nullptr for "none".
/// Throws: ConfigError (MU157) for an unknown name, or for both a name and a hook.
std::shared_ptr<CommHook> chosen_comm_hook(const DdpOptions& options);

}  // namespace muster::parallel
