#pragma once

namespace muster::data {

/// LibTorch's operators on the calling thread use that thread alone from now on. Other threads keep what they have.
void use_one_intra_op_thread();

}  // namespace muster::data
