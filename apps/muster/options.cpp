#include <cstdio>

#include "commands.h"
#include "muster/launcher/detail/option_tables.h"

namespace muster::cli {

int print_options(const Arguments&) {
  return std::printf("%s", options::to_markdown(run_option_table().descriptions()).c_str()) < 0;
}

}  // namespace muster::cli
