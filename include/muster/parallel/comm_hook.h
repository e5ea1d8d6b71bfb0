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

/// A bucket of gradients that are communicated together: tensors of one dtype on one device. A model may have buckets
/// of several dtypes. Each rank has multiplied its gradients by the same factor (1/size, unless ranks have run out of
/// batches), and by the loss scale under "16-mixed", so the hook has to compute their sum. Gradients may be infinite or
/// NaN; under "16-mixed" the step is then skipped.
struct GradientBucket {
  size_t index = 0;                  ///< position in the order in which buckets start; may differ after a restart
  bool last = false;                 ///< the last bucket of this backward
  at::Tensor flat;                   ///< 1-D: all gradients, each padded to a multiple of 64 elements. The sum goes
                                     ///< here. The padding is zero and must stay zero; count only the views below
  std::vector<at::Tensor> matrices;  ///< each gradient with at least two dimensions: its view of `flat`, as rows
                                     ///< x columns
  std::vector<at::Tensor> rest;      ///< the views of all other gradients, 1-D
  std::vector<std::string> names;    ///< parameter names, in the order of their gradients in `flat`; the key for what a
                                     ///< hook keeps, since it is the same after a restart
};

/// Communicates the gradients of a replicated model in place of its all_reduce; not in a world of one rank, and not the
/// gradients that come after the others of their backward (of parameters unfrozen since the last one, or of backwards
/// nested in it), which are summed in full. One object serves one model, or several if it keeps nothing between
/// backwards. See docs/decisions/0052-communication-hooks.md; 0150-state-of-powersgd-goes-by-names.md for hooks with
/// state. Both calls run below autograd, in an order that is equal on all ranks. The reducer calls start() for each
/// bucket as it fills, while backward continues. When backward has ended, it calls the function that start() returned
/// for each bucket, in the order of the starts; if backward has thrown, it calls those of the buckets that have
/// started, and ignores what they throw. On a device both run on a stream of the reducer, after the gradients, and the
/// program waits for that stream. Thread safety: calls come one at a time; start() from a thread that runs backward.
/// The model's mutex is held, so a hook must not call the model, nor run a forward or backward. A rank that throws
/// leaves the others waiting for it until the time-out: throw alike on all ranks.
class CommHook {
 public:
  using Finish = std::function<void()>;
  virtual ~CommHook() = default;
  /// Starts the communication of a bucket. The returned function waits for it and leaves the sum in bucket.flat, equal
  /// on every rank; it may communicate more. The bucket outlives that function, and a Work keeps its tensors alive. An
  /// empty function is refused (MU157). Collective.
  virtual Finish start(const GradientBucket& bucket, const comm::Communicator& group) = 0;
  /// The name that plan() shows: "bf16".
  virtual std::string_view name() const = 0;

  /// The state that this rank's hook keeps between backwards, such as the error for error feedback; empty by default.
  virtual State state_dict() const { return {}; }
  /// Restores that state, perhaps before the first start(), with tensors on the CPU. Throws: CheckpointError (MU208,
  /// MU209), changing nothing, if it is not the state of such a hook.
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
