#pragma once

#include <string>
#include <vector>

#include "main_config.h"
#include "main_sources.h"
#include "muster/base/detail/options.h"

namespace muster::trainer {

/// What is asked of the Trainer.
struct TrainerRequest {
  std::vector<ConfigLine> config = {};  ///< every option, as the file has it
  std::string line = {};                ///< what was found, for MUSTER_OPTIONS
  std::vector<std::string> notes = {};
  TrainerOptions options = {};  ///< `defaults`, except for those of the runtime that were found
  std::vector<std::string> problems = {};
};
/// Finds, reads and checks it. Nothing that `defaults` set is contradicted, apart from options of a strategy.
TrainerRequest trainer_request(const TrainerOptions& defaults, const MainSources& sources,
                               const Environment& variables);

/// The arguments of section trainer, by their names there, with the program's defaults.
std::vector<options::Description> trainer_arguments(const TrainerOptions& defaults);

/// The options of TrainerOptions that are the runtime's, by its names.
std::vector<std::string> names_of_runtime();

}  // namespace muster::trainer
