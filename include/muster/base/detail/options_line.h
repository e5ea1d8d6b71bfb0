#pragma once

#include <string>

#include "muster/base/detail/options.h"

/// All options of a program in one line, the form in which a launcher forwards them to its ranks.
namespace muster::options {

inline constexpr const char* kLineVariable = "MUSTER_OPTIONS";

/// The variable of an option of a program: "fsdp.stage" has MUSTER_FSDP_STAGE.
std::string variable_of(const std::string& name);

/// Reads "precision=bf16,fsdp.stage=full" (a word without '=' continues the list before it), or a line of YAML or JSON:
/// {precision: bf16, fsdp: {stage: full, unit_classes: [Block, Head]}}. `place` names the source in messages.
/// Throws: ConfigError (MU300) for a word that is no name=value, (MU004) for what is no YAML.
Texts read_line(const std::string& line, const std::string& place = std::string("variable ") + kLineVariable);

/// The line that read_line() reads back, as JSON; "" for no texts.
std::string write_line(const Texts& texts);

/// Splits "a=1,b=x,y" into a: "1" and b: "x,y". `place` is that of all parts; `prefix` is put before each name.
/// Throws: ConfigError (`error`) for a word that is no name=value.
Texts split_pairs(const std::string& text, const std::string& place, const std::string& prefix = "",
                  const char* error = "MU300");

/// Replaces the text of the option `name` by the options in it: fsdp: "stage=full" by fsdp.stage: "full". What `texts`
/// has under those names stays. Throws: ConfigError (`error`) as split_pairs().
void expand(Texts& texts, const std::string& name, const char* error = "MU300");

}  // namespace muster::options
