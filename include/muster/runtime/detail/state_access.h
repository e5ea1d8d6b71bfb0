#pragma once

namespace muster::comm {
class Communicator;
}

namespace muster::runtime {

class RuntimeState;

/// The group of all ranks. Throws: UsageError (MU172) before launch() if several ranks were asked for.
const comm::Communicator& group_of(const RuntimeState& state);
/// These answer before launch(), too: one rank, and it is rank 0.
int rank_of(const RuntimeState& state);
int world_size_of(const RuntimeState& state);

/// The type Options, which extras.h defines. `Call` makes the name dependent, so that whether it is complete is checked
/// where the function is called, not where it is declared.
template <class Call, class Options>
struct Extra {
  static_assert(
      requires { sizeof(Options); }, "a program that calls this includes muster/runtime/extras.h");
  using type = Options;
};
template <class Call, class Options>
using extra_t = typename Extra<Call, Options>::type;

}  // namespace muster::runtime
