#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/trainer/options.h"

namespace muster::trainer {

/// Everything that is wrong with the options, except what depends on classes of callbacks. `asks(name)`: whether a
/// value was requested for this option, so that it can contradict another one.
std::vector<std::string> problems_of(const TrainerOptions& options,
                                     const std::function<bool(const std::string&)>& asks);

/// Throws: ConfigError (MU440) with all problems, if there are any.
void raise(const std::vector<std::string>& problems);

}  // namespace muster::trainer
