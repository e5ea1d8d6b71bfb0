#pragma once

namespace muster::data {

/// From now on, LibTorch operators on the calling thread use only that thread. Other threads keep their settings.
void use_one_intra_op_thread();

}  // namespace muster::data
