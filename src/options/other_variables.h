#pragma once  // for other rooms

#include <string>

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"

namespace muster::runtime {

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
