#pragma once  // for other rooms

#include <c10/core/ScalarType.h>

namespace muster::comm {

/// Whether operations of a Communicator take tensors of this dtype.
bool takes_dtype(c10::ScalarType dtype);

}  // namespace muster::comm
