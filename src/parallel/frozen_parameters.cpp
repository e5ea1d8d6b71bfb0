#include "parallel/frozen_parameters.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "comm/agreement.h"
#include "muster/base/error.h"

namespace muster::parallel {
namespace {

bool is_trainable(const NamedTensor& named) { return named.tensor.requires_grad(); }

/// Throws: ConfigError (MU150) on every rank, naming the first of these parameters that only some ranks train.
/// `elsewhere`: what this rank knows about ranks outside the group; it must be equal on all ranks. Collective.
void require_same_freezing(const comm::Communicator& group, const std::vector<NamedTensor>& parameters,
                           const std::string& elsewhere = {}) {
  std::vector<std::string> lines;
  lines.reserve(parameters.size() + 1);
  for (const auto& named : parameters)
    lines.push_back("parameter " + named.name + (is_trainable(named) ? ": trainable now" : ": frozen"));
  if (!elsewhere.empty()) lines.push_back(elsewhere);
  comm::require_same_lines(
      group, lines,
      {.remedy = "call requires_grad_() for the same parameters on every rank, before the same step",
       .what = "ranks have frozen or unfrozen different parameters"});
}

}  // namespace

FrozenParameters::FrozenParameters(const std::vector<NamedTensor>& parameters) {
  std::remove_copy_if(parameters.begin(), parameters.end(), std::back_inserter(parameters_), is_trainable);
}

bool FrozenParameters::any_unfrozen() const {
  return std::any_of(parameters_.begin(), parameters_.end(), is_trainable);
}

void FrozenParameters::require_agreement(const comm::Communicator& group) const {
  require_same_freezing(group, parameters_);
}

std::vector<NamedTensor> FrozenParameters::take_unfrozen() {
  const auto taken =
      std::stable_partition(parameters_.begin(), parameters_.end(), [](const auto& one) { return !is_trainable(one); });
  std::vector<NamedTensor> unfrozen(taken, parameters_.end());
  parameters_.erase(taken, parameters_.end());
  return unfrozen;
}

FreezingAgreement::FreezingAgreement(std::vector<NamedTensor> parameters)
    : parameters_(std::move(parameters)), frozen_(parameters_) {
  for (const auto& named : parameters_) trained_.push_back(static_cast<char>(is_trainable(named)));
}

bool FreezingAgreement::is_outdated() const { return !std::ranges::equal(parameters_, trained_, {}, is_trainable); }

void FreezingAgreement::renew(const comm::Communicator& shards, const comm::Communicator& replicas) {
  // Within the shards first: the replicas of a rank that differs there must be told, or they would wait for it.
  std::exception_ptr differ;
  try {
    if (shards.size() > 1) require_same_freezing(shards, parameters_);
  } catch (const ConfigError&) {
    differ = std::current_exception();
  }
  if (replicas.size() > 1)
    require_same_freezing(replicas, parameters_, differ ? "its shards: different" : "its shards: equal");
  if (differ) std::rethrow_exception(differ);
  for (size_t i = 0; i < parameters_.size(); ++i) trained_[i] = static_cast<char>(is_trainable(parameters_[i]));
}

}  // namespace muster::parallel
