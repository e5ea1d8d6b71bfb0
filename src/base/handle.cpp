#include "muster/base/handle.h"

#include "muster/base/error.h"

namespace muster {

void refuse_empty_handle(HandleType type) {
  constexpr const char* kNames[] = {"DataLoader", "Model", "Optimizer", "Scheduler"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(HandleType::scheduler) + 1);
  throw UsageError("MU322", std::string("this muster::") + kNames[static_cast<int>(type)] +
                                " is empty: nothing was assigned to it yet, or it was moved from or freed; assign the "
                                "result of prepare (Fabric: setup) to it before it is used");
}

}  // namespace muster
