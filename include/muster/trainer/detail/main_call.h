#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/trainer/options.h"

/// The part of trainer_main() that does not depend on types of the program.
namespace muster {

class Trainer;

namespace trainer {

/// One field of a plain struct, which outlives it.
struct OptionField {
  options::Description description;  ///< named as in its section: "rate"; in a nested struct, "sizes.in"
  std::function<std::string(const std::string&)> read;  ///< into the struct, as options::Value<T>::read
  std::function<std::string()> write;
};

/// A list as one text: as options::split_items() reads it, optionally in brackets.
std::string read_items(const std::string& text, std::vector<std::string>& items);

/// The description of a program with trainer_main().
struct MainProgram {
  std::array<bool, 4> runs = {};  ///< by Stage: whether the module has the step and the data the loader
  TrainerOptions trainer = {};    ///< defaults
  std::vector<OptionField> model = {};
  std::vector<OptionField> data = {};
  /// Reads the module's options from a checkpoint that has them. Empty: the module has no options.
  std::function<void(const std::filesystem::path& checkpoint)> load_model_options = {};
};

/// The parsed command line of the program.
struct MainCall {
  std::string ckpt_path = {};
  std::string error = {};             ///< for stderr
  std::optional<int> exit_code = {};  ///< set if there is nothing to run
  std::string options_line = {};      ///< the Trainer's options, for the variable MUSTER_OPTIONS
  std::string output = {};            ///< for stdout
  std::optional<uint64_t> seed = {};
  Stage stage = Stage::fit;
  TrainerOptions trainer = {};  ///< options given in code, except those in options_line
};

/// Parses `words` (the program's name first), the files that they name, and the variables. Stores the options of the
/// module and of the data in `program`'s structs. One message, MU500, lists all errors.
MainCall read_main_call(const std::vector<std::string>& words, const MainProgram& program,
                        const Environment& variables);

/// Prints the output and the error of the call and, if there is something to run, sets the options where the Trainer
/// and further ranks read them. Returns whether there is something to run. Requires: no other thread reads or writes
/// the environment.
bool begin_main(const MainCall& call);

/// Prints the logged metrics, on the main rank.
void print_metrics(const Trainer& trainer, const std::vector<Metrics>& of_loaders);

void seed_generators(const std::optional<uint64_t>& seed);

}  // namespace trainer
}  // namespace muster
