#pragma once

#include <cstddef>

#include "muster/comm/communicator.h"
#include "parallel/local.h"

namespace muster::parallel {

/// The parameters of a model that required no gradient when it was prepared, and that training has not taken in since.
/// Thread safety: the caller's.
/// Why: docs/decisions/0083-unfreezing-is-agreed-at-the-end-of-a-reduction.md.
class FrozenParameters {
 public:
  FrozenParameters() = default;
  /// Takes the parameters of the list that require no gradient.
  explicit FrozenParameters(const std::vector<NamedTensor>& parameters);

  const std::vector<NamedTensor>& all() const noexcept { return parameters_; }
  /// Whether one of these parameters requires a gradient now.
  bool any_unfrozen() const;
  /// Throws: ConfigError (MU150) on every rank, naming the first of these parameters that only some ranks train.
  /// Collective.
  void require_agreement(const comm::Communicator& group) const;
  /// Removes the parameters that require a gradient now, and returns them in the model's order.
  std::vector<NamedTensor> take_unfrozen();

 private:
  std::vector<NamedTensor> parameters_;
};

/// Which parameters of a sharded model are trained, as all ranks last agreed. Thread safety: the caller's.
class FreezingAgreement {
 public:
  FreezingAgreement() = default;
  /// The ranks have agreed on what these parameters are now.
  explicit FreezingAgreement(std::vector<NamedTensor> parameters);

  /// Whether this rank has frozen or unfrozen parameters since then.
  bool is_outdated() const;
  /// The parameters that were frozen in the beginning, without those that take_unfrozen() has returned.
  const std::vector<NamedTensor>& frozen() const noexcept { return frozen_.all(); }
  /// Compares what ranks have frozen and unfrozen, and agrees on it.
  /// Throws: ConfigError (MU150), on all ranks, if they differ. Collective.
  void renew(const comm::Communicator& shards, const comm::Communicator& replicas);
  /// Removes the frozen parameters that require a gradient now, and returns them in the model's order.
  std::vector<NamedTensor> take_unfrozen() { return frozen_.take_unfrozen(); }

 private:
  std::vector<NamedTensor> parameters_;
  std::vector<char> trained_;  // by parameter
  FrozenParameters frozen_;
};

}  // namespace muster::parallel
