#pragma once

namespace muster::probe {

/// Prints LibTorch's features and what it finds on this machine, one line each.
void print_environment();

/// Tests launch, collectives, data, training and weights on the ranks of this job; the main rank prints a line for
/// each. Collective. Returns the exit code: 0 if everything works.
int run_checks();

}  // namespace muster::probe
