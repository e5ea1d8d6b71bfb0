#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/trainer/detail/main_call.h"

namespace muster::trainer {

/// The output of --help. With a command, it includes the arguments of the Trainer. `name` is the program's.
std::string main_help(const std::string& name, const std::string& command, const MainProgram& program,
                      const std::vector<options::Description>& trainer_arguments);

}  // namespace muster::trainer
