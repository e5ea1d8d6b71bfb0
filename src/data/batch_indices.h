#pragma once  // for other rooms

#include <cstdint>
#include <vector>

#include "muster/data/detail/loader_state.h"

namespace muster::data {

/// The dataset indices of the samples in the current batch of a pass; for a stream, their positions in the pass. Empty
/// before the first batch, after the last one, and where rank 0 reads for all ranks.
std::vector<int64_t> batch_indices(const Pass& pass);

}  // namespace muster::data
