#include "muster/base/error.h"
#include "muster/runtime/detail/prepare.h"

namespace muster::runtime {

void require_made(const void* object) {
  if (!object)
    throw ConfigError("MU326",
                      "a function given to prepare returned an empty pointer; return the optimizer or the scheduler "
                      "that it makes");
}

}  // namespace muster::runtime
