#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/process.h"
#include "muster/base/detail/options.h"

/// Jobs of one rank, which writes what it resolved of its options.
namespace muster::launcher::testing {

/// Texts of options by name.
using Values = std::map<std::string, std::string>;

const options::Description& described(const std::string& name);

/// How a rank writes it: a duration has its unit.
std::string written(const std::string& name, const std::string& text);

/// Runs a job and compares what the rank resolved.
void expect_resolved(const Values& values, std::vector<std::string> flags, const Process::Setup& setup = {});

// Each job sets its options in one way.
void expect_by_flag(const std::vector<Values>& jobs);
void expect_by_variable(const std::vector<Values>& jobs);
/// `variable`: one that sets an option of the line to something else.
void expect_by_line(const std::vector<Values>& jobs, const std::string& variable);

}  // namespace muster::launcher::testing
