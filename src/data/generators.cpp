#include "data/generators.h"

#include <mutex>

namespace muster::data {

void broadcast_state(const comm::Communicator& group, at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  const auto state = generator.get_state().clone();
  group.internal("the state of a generator").broadcast(state, 0);
  generator.set_state(state);
}

}  // namespace muster::data
