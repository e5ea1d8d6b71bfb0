#pragma once

namespace muster::sim {

// What install() calls, once and in this order.
void register_guard();      // devices, streams, events
void register_hooks();      // generators, pinned memory, storage
void register_operators();  // the fallback of all operators, and those with kernels of their own
void register_autocast();

}  // namespace muster::sim
