#pragma once

#include "hook/interceptor.h"
#include "hook/watched_storage.h"

namespace muster::hook {

/// Lets an override that marks one of the operator's arguments run the operator.
void take_over(Call& call);

inline constexpr Interceptor kOperatorOverride{.name = "operator override",
                                               .priority = Priority::operator_override,
                                               .takes = nullptr,
                                               .run = take_over,
                                               .disabled_by = kStorageInterceptorsSwitch};

}  // namespace muster::hook
