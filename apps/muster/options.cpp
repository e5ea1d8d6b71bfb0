#include <cstdio>

#include "accelerate_names.h"
#include "base/options_text.h"
#include "commands.h"
#include "deepspeed_names.h"
#include "muster/base/error.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"

namespace muster::cli {

int print_options(const Arguments& arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h"))
    return std::puts(
               "muster options [run|launch|deepspeed|options]: prints the options of the launcher, the names of "
               "Accelerate, "
               "the keys of DeepSpeed's file, or the options of a program") < 0;
  if (arguments.size() > 1)
    throw UsageError("MU006", "muster options prints one table; after it stands '" + arguments[1] + "'");
  const std::string page = arguments.empty() ? "run" : arguments.front();
  if (page == "deepspeed") return std::fputs(deepspeed_markdown().c_str(), stdout) < 0;
  if (page == "launch") return std::fputs(accelerate_markdown().c_str(), stdout) < 0;
  if (page != "run" && page != "options")
    throw UsageError("MU006", "muster options prints no table '" + page +
                                  "'; known: run (the launcher's), launch (Accelerate's), deepspeed (keys of its "
                                  "file), options (those of a program)");
  const auto table = page == "run" ? run_option_table().descriptions() : runtime::program_options();
  return std::printf("%s", options::to_markdown(table).c_str()) < 0;
}

}  // namespace muster::cli
