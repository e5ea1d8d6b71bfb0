#pragma once  // for other rooms

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// The options of a program, apart from those of its strategy and its Trainer.
const options::Table<RuntimeOptions>& runtime_option_table();

/// Every option of a program: those of the runtime, then "ddp..." and "fsdp...", then "ddp" and "fsdp", each of which
/// sets several of the former by one text, then "trainer...". Options that only code can set are included.
const std::vector<options::Description>& program_options();

/// The options given from outside the program, by name, from all `sources`. "fsdp" and "ddp" are split into their
/// options; those of Accelerate, Lightning and fairscale ("fsdp.sharding_strategy") stay as they are. `section` is a
/// section of the file. `others` are further options, such as the launcher's, that the file's section and the flags may
/// have; they are returned, too.
/// Throws: ConfigError as options::find(), (MU196) for text that is not name=value, and (MU306) for a launcher's name
/// that is not a known option.
options::RawOptions find_given_options(const options::Sources& sources, const std::string& section = "",
                                       const std::vector<options::Description>& others = {});

/// Checks that a program without options in its code could follow these options.
/// Throws: ConfigError, as the runtime of a rank or its Trainer would.
void check_given_options(const options::RawOptions& given_options);

/// `values` with the given options in place of its defaults. Options that a program does not have are ignored.
/// Throws: ConfigError (MU171) for a contradiction, (MU002, MU021) for a value that cannot be read, and as
/// Strategy::parse(), Precision::parse() and strategy::resolve_strategy().
RuntimeOptions with_given_options(RuntimeOptions values, const options::RawOptions& given_options,
                                  const Environment& variables);

/// The options of the program, with defaults replaced by what the launcher requests in environment variables.
/// Throws: ConfigError (MU171) if the program and a variable ask for different things; (MU002, MU021) for a variable
/// that cannot be read.
RuntimeOptions resolved(RuntimeOptions options, const Environment& environment);

/// Lines of plan() such as "option precision: bf16 (run.yaml line 3)", one per option given from outside the program.
std::vector<std::string> given_option_notes(const Environment& environment);

/// Every option as text, with those of the strategy. Options that only code can set are left out.
std::map<std::string, std::string> written_options(const RuntimeOptions& options);

/// Options that other tools request by variables that the table does not list, such as ACCELERATE_USE_CPU.
options::RawOptions given_by_other_tools(const Environment& variables);

/// Variables of Accelerate, Lightning and PyTorch (ACCELERATE_*, LT_*, PL_*, FSDP_*, PARALLELISM_CONFIG_*) that ask for
/// something that Muster does not know, in one line for a warning; "" for none.
std::string unknown_variables(const Environment& variables);

/// Variables MUSTER_* that Muster does not read, each with the nearest known name, in one line for a warning; "" for
/// none. MUSTER_TEST_* belong to tests; MUSTER_MODEL_* and MUSTER_DATA_* belong to programs with trainer_main(), which
/// refuse unknown ones.
std::string misspelt_variables(const Environment& variables);

}  // namespace muster::runtime
