#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace muster::graph {

/// A number for the bytes of a tensor's values: XXH3 on a host, elsewhere a sum of its words, for which the host waits.
/// nullopt for tensors whose bytes are not all there or not laid out one after another: sharded, sparse, meta.
std::optional<uint64_t> digest_of(const at::Tensor& tensor);

}  // namespace muster::graph
