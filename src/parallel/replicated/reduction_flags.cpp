#include "parallel/replicated/reduction_flags.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/listing.h"

namespace muster::parallel {

void ReductionFlags::write(const Replica& replica, bool due, bool broken, bool late, bool unfrozen, unsigned bits) {
  const auto& parameters = replica.parameters();
  const auto own = at::empty({count(parameters.size())}, at::kDouble);
  auto* flags = own.mutable_data_ptr<double>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    // Through the impl, because Tensor::grad() would first ask autograd whether it is a leaf.
    const bool used = parameters[i].tensor.unsafeGetTensorImpl()->grad().defined();
    flags[i] = used;
    flags[parameters.size() + i] = !used && due && parameters[i].tensor.requires_grad();
  }
  flags[2 * parameters.size()] = broken;
  flags[2 * parameters.size() + 1] = late;
  flags[2 * parameters.size() + 2] = unfrozen;
  flags[2 * parameters.size() + 3] = due;
  for (size_t b = 0; b < Piggyback::kBits; ++b) flags[2 * parameters.size() + 4 + b] = (bits >> b) & 1U;
  for (size_t i = 0; i < parameters.size(); ++i)
    flags[2 * parameters.size() + 4 + Piggyback::kBits + i] = due && !parameters[i].tensor.requires_grad();
  at::NoGradGuard no_grad;
  // No graph has saved this memory: nothing must be recorded, and no version has to change.
  at::AutoDispatchBelowADInplaceOrView below;
  replica.flags().copy_(own);
}

ReductionFlags ReductionFlags::read(const Replica& replica) {
  const auto parameters = replica.parameters().size();
  if (parameters == 0) return {};
  const auto flags = replica.flags().to(at::kCPU, at::kDouble);
  const auto* values = flags.const_data_ptr<double>();
  ReductionFlags sums;
  sums.used.assign(values, values + parameters);
  sums.unused.assign(values + parameters, values + 2 * parameters);
  sums.broken = values[2 * parameters] > 0;
  sums.late = values[2 * parameters + 1] > 0;
  sums.unfrozen = values[2 * parameters + 2] > 0;
  sums.due = values[2 * parameters + 3];
  for (size_t b = 0; b < Piggyback::kBits; ++b)
    if (values[2 * parameters + 4 + b] > 0) sums.bits |= 1U << b;
  const auto* frozen = values + 2 * parameters + 4 + Piggyback::kBits;
  sums.frozen.assign(frozen, frozen + parameters);
  return sums;
}

bool ReductionFlags::any() const {
  return std::any_of(used.begin(), used.end(), [](double ranks) { return ranks > 0; });
}

std::string ReductionFlags::frozen_on_some(const Replica& replica) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < frozen.size(); ++i)
    if (frozen[i] > 0 && frozen[i] < due) names.push_back(replica.parameters()[i].name);
  return first_names(names, quoted);
}

std::string ReductionFlags::missing(const Replica& replica) const {
  std::vector<std::string> nowhere, somewhere;
  for (size_t i = 0; i < unused.size(); ++i)
    if (unused[i] > 0) (used[i] > 0 ? somewhere : nowhere).push_back(replica.parameters()[i].name);
  std::string text;
  if (!nowhere.empty()) text += "no rank has a gradient for " + first_names(nowhere, quoted);
  if (!somewhere.empty())
    text += (text.empty() ? "" : "; ") + ("only some ranks have a gradient for " + first_names(somewhere, quoted));
  return text;
}

}  // namespace muster::parallel
