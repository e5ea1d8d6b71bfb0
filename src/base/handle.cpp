#include "muster/base/handle.h"

#include "muster/base/error.h"

namespace muster {
namespace {

const char* name_of(HandleType type) {
  switch (type) {
    case HandleType::data_loader: return "DataLoader";
    case HandleType::model: return "Model";
    case HandleType::optimizer: return "Optimizer";
    case HandleType::scheduler: return "Scheduler";
  }
  return "handle";
}

}  // namespace

void refuse_empty_handle(HandleType type) {
  throw UsageError("MU322", std::string("this muster::") + name_of(type) +
                                " is empty: nothing was assigned to it yet, or it was moved from or freed; assign the "
                                "result of prepare (Fabric: setup) to it before it is used");
}

}  // namespace muster
