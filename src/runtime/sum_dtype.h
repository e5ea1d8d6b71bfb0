#pragma once  // for other rooms

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace muster::runtime {

/// The dtype in which values of many batches are summed on a device: float64, as on the host, or float32 on MPS, which
/// has no float64.
inline c10::ScalarType sum_dtype(c10::Device device) {
  return device.is_mps() ? c10::ScalarType::Float : c10::ScalarType::Double;
}

}  // namespace muster::runtime
