#pragma once

#include "muster/optim/flat_source.h"
#include "muster/parallel/job_rounds.h"
#include "muster/parallel/sharded_options.h"
#include "muster/precision/policy.h"
#include "muster/tree/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::parallel {

class Joinable;

/// The run of a parameter's elements that this rank holds.
struct ParameterPart {
  std::string name;       ///< tied parameters come under each of their names
  at::Tensor parameter;
  at::Tensor values;      ///< the elements [begin, begin + numel()) in the order in which the parameter lies in memory; 1-D, to be written
                          ///< in optim::write_parameters() only
  int64_t begin = 0;
  int64_t padded = 0;     ///< elements that an optimizer's state of this part has
  int replica = 0;        ///< how many ranks before this one hold the same elements
};

/// One module under a way to train: what a strategy makes of it. The reducer (replicated) and the sharded model are the
/// two implementations; a module alone in the world has a third, trivial one.
/// Thread safety: calls come from one thread; hooks of autograd may run on another while backward runs.
class ManagedModel : public optim::FlatSource {
 public:
  /// A forward scope opens or closes on this module. Collective where parameters are gathered (ShardStage::full); otherwise a rank may
  /// run a forward alone.
  virtual void enter_forward() = 0;
  virtual void leave_forward() noexcept = 0;

  /// Called around backward by the runtime. after_backward() throws what a hook had to report:
  /// a forward that bypassed the scope, a parameter that got no gradient, a failed collective. A backward that communicates gradients
  /// leaves every rank with the buffers of rank 0.
  virtual void before_backward() = 0;
  virtual void after_backward() = 0;

  /// Buffers get the values of rank 0. Collective.
  virtual void share_buffers() {}

  /// Off: gradients stay local and add up; the next backward with it on communicates the sum.
  virtual void set_gradient_sync(bool on) = 0;
  virtual bool gradient_sync() const = 0;

  /// Averages over ranks what gradients this rank has, as the end of a backward does: for a rank whose loss missed the model, where
  /// others' backward waits for it. Changes nothing where no rank has any, nor where each touch of parameters communicates.
  /// The averagings of several models start first and finish then, in the order of the backward they stand for.
  /// Throws: as backward. Collective, as backward: every rank calls these or runs backward.
  virtual void start_round() {}
  virtual void finish_round() {}
  /// How many such averagings have ended here, those of backward included.
  virtual int64_t rounds() const { return 0; }
  /// Some parameter has a gradient.
  virtual bool has_gradients() const { return false; }
  /// The model is one of these, at this place, the same on every rank: averagings say place and step, so that those of models that are
  /// alike, or of ranks in different steps, do not go together, and tell their order.
  virtual void join_job(std::shared_ptr<JobRounds> job, int64_t place) { static_cast<void>(job), static_cast<void>(place); }

  /// The sum over this rank's distinct gradient elements of |g|^p (the maximum for p = infinity) of these parameters,
  /// over all ranks where they are sharded: the same bits however gradients are cut (see optim::power_sum). Throws: ConfigError (MU144) unless p > 0.
  virtual double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) = 0;
  /// Multiplies (or clamps) gradients in place where they live.
  virtual void for_each_gradient(const std::vector<at::Tensor>& parameters, const std::function<void(const at::Tensor&)>& f) = 0;
  /// Multiplies all that this rank has gathered of these gradients, also what waits for communication.
  virtual void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
    for_each_gradient(parameters, [factor](const at::Tensor& gradient) { at::Tensor(gradient).mul_(factor); });
  }
  /// Ranks hold different parts of the gradients. Otherwise they hold the same ones, to the bit.
  virtual bool sharded() const { return false; }

  /// Names, in the module's order, with whole values on every rank that asked for them.
  /// Collective: where parameters are sharded. `main_only`: other ranks get an empty list.
  virtual std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) = 0;

  /// What this rank holds of parameters that are cut over ranks; nothing where they are whole.
  virtual std::vector<ParameterPart> parts() { return {}; }

  /// The dtype in which a parameter or buffer of the module is kept and saved, whatever it is used in.
  virtual at::ScalarType stored_dtype(const at::Tensor& tensor) const { return tensor.scalar_type(); }
  /// What becomes of the inputs and outputs of forwards.
  virtual precision::ForwardCasts forward_casts() const { return {}; }

  /// Runs f while the module's parameters hold whole values, outside of forward and backward; where they always do it is
  /// just called. Collective where parameters are sharded.
  virtual void summon_full_params(const std::function<void()>& f, const FullParamsOptions& options = {}) {
    static_cast<void>(options);
    f();
  }

  /// What communication of gradients carries on this rank from one backward to the next: a communication hook's state.
  virtual State save_communication() const { return {}; }
  virtual void load_communication(const State&) {}

  /// For join_uneven_inputs(); nullptr if this rank cannot take part in what others communicate without a batch of its own.
  virtual Joinable* joinable() { return nullptr; }

  /// One line for plan(): "ddp: 2 ranks, 3 buckets of at most 25 MiB, ...".
  virtual std::string describe() const = 0;
};

}  // namespace muster::parallel
