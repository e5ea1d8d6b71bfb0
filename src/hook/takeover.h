#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/stack.h>

namespace muster::hook {

/// Lets the marks among an operator's arguments run it; false if none did.
bool run_takeover(const std::string& op, size_t arguments, torch::jit::Stack& stack);

}  // namespace muster::hook
