#pragma once

namespace muster::sim {

// install() calls these functions once and in this order.
void register_guard();      // devices, streams, events
void register_hooks();      // generators, pinned memory, storage
void register_operators();  // the fallback of all operators, and operators with separate kernels
void register_autocast();

}  // namespace muster::sim
