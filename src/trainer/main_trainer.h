#pragma once

#include <string>
#include <vector>

#include "main_config.h"
#include "main_sources.h"
#include "muster/base/detail/options.h"

namespace muster::trainer {

/// The Trainer's options after all sources were read.
struct TrainerRequest {
  std::vector<ConfigLine> config = {};  ///< every option, as a file states it
  std::string line = {};                ///< options that were found, for MUSTER_OPTIONS
  std::vector<std::string> notes = {};
  TrainerOptions options = {};  ///< `defaults` without the runtime's options that were found
  std::vector<std::string> problems = {};
};
/// Reads and checks the options. Values in `defaults` never count as a contradiction, except options of a strategy.
TrainerRequest trainer_request(const TrainerOptions& defaults, const MainSources& sources,
                               const Environment& variables);

/// The arguments of section `trainer`, by their names there, with the program's defaults.
std::vector<options::Description> trainer_arguments(const TrainerOptions& defaults);

/// The options of TrainerOptions that belong to the runtime, by the runtime's names.
std::vector<std::string> names_of_runtime();

}  // namespace muster::trainer
