#include "parallel/frozen_parameters.h"

#include <algorithm>
#include <iterator>

#include "comm/same_lines.h"

namespace muster::parallel {
namespace {

bool is_trainable(const NamedTensor& named) { return named.tensor.requires_grad(); }

}  // namespace

void require_same_freezing(const comm::Communicator& group, const std::vector<NamedTensor>& parameters,
                           const std::string& elsewhere) {
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

}  // namespace muster::parallel
