#pragma once

#include "muster/hook/detail/interceptor.h"
#include "muster/hook/detail/key_fallback.h"

namespace muster::hook {

/// Lets the marks among an operator's arguments run it.
void take_over(Call& call);

inline constexpr Interceptor kOperatorTakeover{.name = "operator takeover",
                                               .position = Position::operator_takeover,
                                               .takes = nullptr,
                                               .run = take_over,
                                               .process_switch = kKeyFallbackSwitch};

}  // namespace muster::hook
