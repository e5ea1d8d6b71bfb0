#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/trainer/detail/main_call.h"

namespace muster::trainer {

/// What --help prints; with a command, the arguments of the Trainer, too. `name` is the program's.
std::string main_help(const std::string& name, const std::string& command, const MainProgram& program,
                      const std::vector<options::Description>& trainer_arguments);

}  // namespace muster::trainer
