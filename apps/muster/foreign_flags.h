#pragma once

#include <string>
#include <vector>

#include "commands.h"
#include "muster/base/detail/options.h"

namespace muster::cli {

/// Muster's name for a flag of torchrun, accelerate launch, fabric run, mpirun or srun: "--devices", or a remark; ""
/// for an unknown flag. `flag` may have "=value".
std::string our_name_for(const std::string& flag);

/// Assignment of the words after the program to the launcher or the program.
struct Split {
  Arguments ours;                ///< flags of muster run after the program, as in `fabric run train --devices=8`
  Arguments program;             ///< the program and its arguments
  Arguments resemble_our_flags;  ///< words for the program that are spelled like flags of muster run
};

/// The flags before the program; an empty value ("--log-dir=") becomes a separate word.
/// Throws: UsageError (MU307) for a flag of `known` whose value is missing.
Arguments with_values(const Arguments& arguments, const std::vector<options::Description>& known);

/// Splits the program and the words after it. These words are the launcher's if no flag precedes the program (`bare`),
/// each of them is a flag of `known` in one word (--name=value, or a switch), and one of them places ranks (devices,
/// nodes, ...). Otherwise all belong to the program.
Split split_command(const Arguments& command, bool bare, const std::vector<options::Description>& known);

}  // namespace muster::cli
