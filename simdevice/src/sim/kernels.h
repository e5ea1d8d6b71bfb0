#pragma once

#include <torch/library.h>

namespace muster::sim {

/// A library of this namespace and key whose kernels stay registered until the process ends.
torch::Library& kept_library(const char* name_space, c10::DispatchKey key);
/// Copies between host and devices, and values that the host reads.
void register_copies(torch::Library& library);
/// The cells of LSTM and GRU.
void register_recurrent(torch::Library& library);
/// Operators that make, resize and view storage.
void register_storage(torch::Library& library);

}  // namespace muster::sim
