#pragma once

#include <string>
#include <vector>

#include "parallel/local.h"

namespace muster::parallel {

/// One line per tensor: "parameter fc.weight: Float [10, 64], strides [64, 1], trainable".
std::vector<std::string> describe_tensors(const std::vector<NamedTensor>& parameters,
                                          const std::vector<NamedTensor>& buffers);

/// Throws: ConfigError (MU056), with its name, for a parameter or buffer whose dtype ranks cannot exchange.
void require_sendable(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers);

}  // namespace muster::parallel
