#include "parallel/same_model.h"

#include <sstream>

#include "comm/operation.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::parallel {

std::vector<std::string> describe_tensors(const std::vector<NamedTensor>& parameters,
                                          const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const NamedTensor& named) {
    std::ostringstream line;
    line << what << ' ' << named.name << ": " << c10::toString(named.tensor.scalar_type()) << ' '
         << named.tensor.sizes() << ", strides " << named.tensor.strides()
         << (named.tensor.requires_grad() ? ", trainable" : ", no gradient");
    lines.push_back(line.str());
  };
  for (const auto& named : parameters) add("parameter", named);
  for (const auto& named : buffers) add("buffer", named);
  return lines;
}

void require_sendable(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers) {
  const auto check = [](const char* what, const NamedTensor& named) {
    if (comm::takes_dtype(named.tensor.scalar_type())) return;
    throw ConfigError("MU056", formatted("{} '{}' is of {}, which ranks cannot exchange: keep its numbers in a real "
                                         "dtype (at::view_as_real of a complex tensor, at::view_as_complex in "
                                         "forward), or train on one rank",
                                         what, named.name, c10::getDtypeNames(named.tensor.scalar_type()).first));
  };
  for (const auto& named : parameters) check("parameter", named);
  for (const auto& named : buffers) check("buffer", named);
}

}  // namespace muster::parallel
