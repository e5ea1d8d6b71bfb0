#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/detail/environment.h"
#include "muster/trainer/detail/option_field.h"
#include "muster/trainer/options.h"

/// What stands behind trainer_main() and needs no type of the program's.
namespace muster {

class Trainer;

namespace trainer {

/// What a program with trainer_main() is.
struct MainProgram {
  std::array<bool, 4> runs = {};  ///< by Stage: the module has the step, and the data the loader
  TrainerOptions trainer = {};    ///< defaults
  std::vector<OptionField> model = {};
  std::vector<OptionField> data = {};
  /// Reads the module's options of a checkpoint, if it has some. Empty: the module has no options.
  std::function<void(const std::filesystem::path& checkpoint)> load_model_options = {};
};

/// What its user asks for.
struct MainCall {
  std::string ckpt_path = {};
  std::string error = {};             ///< for stderr
  std::optional<int> exit_code = {};  ///< set: nothing is to run
  std::string options_line = {};      ///< what was found for the Trainer, for the variable MUSTER_OPTIONS
  std::string output = {};            ///< for stdout
  std::optional<uint64_t> seed = {};
  Stage stage = Stage::fit;
  TrainerOptions trainer = {};  ///< where a value was found, without the program's own
};

/// Reads `words`, the program's name before them, with the files that they name and the variables. The values of the
/// module's and the data's options are put into `program`'s structs. All that is wrong is in one message, MU500.
MainCall read_main_call(const std::vector<std::string>& words, const MainProgram& program,
                        const Environment& variables);

/// Prints what the call says and, if something is to run, leaves the options where the Trainer and further ranks read
/// them. Returns whether something is to run. Requires: no other thread reads or writes the environment.
bool begin_main(const MainCall& call);

/// Prints what was logged, on the main rank.
void print_metrics(const Trainer& trainer, const std::vector<Metrics>& of_loaders);

void seed_generators(const std::optional<uint64_t>& seed);

}  // namespace trainer
}  // namespace muster
