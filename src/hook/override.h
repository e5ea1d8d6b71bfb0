#pragma once

#include "muster/hook/detail/interceptor.h"
#include "muster/hook/detail/watched_storage.h"

namespace muster::hook {

/// Lets the marks among an operator's arguments run it.
void take_over(Call& call);

inline constexpr Interceptor kOperatorTakeover{.name = "operator takeover",
                                               .priority = Priority::operator_takeover,
                                               .takes = nullptr,
                                               .run = take_over,
                                               .disabled_by = kKeyFallbackSwitch};

}  // namespace muster::hook
