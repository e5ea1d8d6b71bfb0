#pragma once

namespace muster::probe {

/// Prints what LibTorch has and finds on this machine, one line each.
void print_environment();

/// Tries launch, collectives, data, training and weights on the ranks of this job; the main rank prints a line for
/// each. Collective. Returns the exit code: 0 if all of it works.
int run_checks();

}  // namespace muster::probe
