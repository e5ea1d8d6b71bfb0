#pragma once

#include <string>
#include <vector>

#include "commands.h"
#include "muster/base/detail/options.h"

namespace muster::cli {

/// What a flag of torchrun, accelerate launch, fabric run, mpirun or srun is called here: "--devices", or a remark; ""
/// for an unknown flag. `flag` may carry "=value".
std::string our_name_for(const std::string& flag);

/// Which words after the program are whose.
struct Split {
  Arguments ours;     ///< flags of muster run that stand after the program, as in `fabric run train --devices=8`
  Arguments program;  ///< the program and its arguments
  Arguments resemble_our_flags;  ///< words that go to the program and are spelled like flags of muster run
};

/// The flags before the program, with an empty value ("--log-dir=") as a word of its own.
/// Throws: UsageError (MU307) for a flag of `known` that needs a value and has none.
Arguments with_values(const Arguments& arguments, const std::vector<options::Description>& known);

/// Splits the program and the words after it. These are ours if no flag stands before the program (`bare`), each of
/// them is a flag of `known` in one word (--name=value, or a switch), and one of them places ranks (devices, nodes,
/// ...). Otherwise all go to the program.
Split split_command(const Arguments& command, bool bare, const std::vector<options::Description>& known);

}  // namespace muster::cli
