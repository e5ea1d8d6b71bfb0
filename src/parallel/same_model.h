#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/comm/communicator.h"
#include "parallel/local.h"

namespace muster::parallel {

/// One line per tensor: "parameter fc.weight: Float [10, 64], strides [64, 1], trainable".
std::vector<std::string> describe_tensors(const std::vector<NamedTensor>& parameters,
                                          const std::vector<NamedTensor>& buffers);

/// The beginning and the end of the error.
struct DisagreementText {
  std::string_view remedy = "build the same model on every rank, whatever its rank";
  std::string_view what = "ranks have built different models";
};

/// Throws: ConfigError (MU150) on every rank, naming the first line that differs and both sides.
/// Collective: one exchange of bytes.
void require_same_model(const comm::Communicator& group, const std::vector<std::string>& lines,
                        const DisagreementText& text = {});

}  // namespace muster::parallel
