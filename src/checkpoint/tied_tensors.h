#pragma once

#include <map>
#include <string>

#include "muster/checkpoint/weights.h"

namespace muster::checkpoint {

/// Whether both are the same view of the same memory. Always false for tensors without elements.
bool are_tied(const at::Tensor& a, const at::Tensor& b);

/// Tensors without ties, and for each dropped name the name that was kept.
struct UntiedTensors {
  std::map<std::string, std::string> kept_name_of;
  NamedTensors tensors;  ///< kept tensors, in the given order
};

/// Drops all but the alphabetically first name of every tie.
UntiedTensors drop_tied(const NamedTensors& tensors);

}  // namespace muster::checkpoint
