#pragma once

#include "muster/checkpoint/weights.h"

namespace muster {

/// For tests that write many files and need none of them after a crash.
inline const SaveFileOptions kQuick{.durability = Durability::none};

}  // namespace muster
