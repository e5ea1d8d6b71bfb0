#pragma once  // for other rooms

#include <map>
#include <string>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster {
struct RuntimeOptions;
}

namespace muster::runtime {

/// Every option of a program: those of the runtime, then "ddp..." and "fsdp...", then "ddp" and "fsdp", which set
/// several of the latter by one text, then "trainer...". Those that need code are described, too.
const std::vector<options::Description>& program_options();

/// The options given from outside the program, by name, of all `sources`. "fsdp" and "ddp" are split into their
/// options; those of Accelerate, Lightning and fairscale ("fsdp.sharding_strategy") stay as they are. `section` is the
/// file's. `others` are further options, such as the launcher's, that the file's section and the flags may have; they
/// are returned, too. Throws: ConfigError as options::find(), (MU196) for text that is no name=value, and (MU306) for a
/// name of a launcher that is none of the known options.
options::RawOptions find_given_options(const options::Sources& sources, const std::string& section = "",
                                       const std::vector<options::Description>& others = {});

/// Checks that a program without options of its own could follow these options.
/// Throws: ConfigError, as the runtime of a rank, or its Trainer, would.
void check_given_options(const options::RawOptions& given_options);

/// Every option as text, those of the strategy included, once the given ones stand in place of defaults of the program
/// (`in_code`); what code alone can set is left out. Throws: ConfigError as a rank would, (MU171) among them.
std::map<std::string, std::string> written_options(const RuntimeOptions& in_code,
                                                   const options::RawOptions& given_options,
                                                   const Environment& variables);

/// Variables of Accelerate's, Lightning's and PyTorch's families (ACCELERATE_*, LT_*, PL_*, FSDP_*,
/// PARALLELISM_CONFIG_*) that ask for something that Muster does not know, in one line for a warning; "" for none.
std::string unknown_variables(const Environment& variables);

/// Variables MUSTER_* that Muster does not read, each with the nearest that it reads, in one line for a warning; "" for
/// none. MUSTER_TEST_* are left to tests, MUSTER_MODEL_* and MUSTER_DATA_* to programs with trainer_main(), which
/// refuse those that they do not know.
std::string misspelt_variables(const Environment& variables);

}  // namespace muster::runtime
