#include <cstdio>
#include <exception>
#include <string_view>

#include "probe.h"

int main(int count, char** values) {
  const std::string_view what = count == 2 ? values[1] : "";
  try {
    if (what == "test") return muster::probe::run_checks();
    if (what == "env") return muster::probe::print_environment(), 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muster-probe: %s\n", error.what());
    return 1;
  }
  std::fputs("muster-probe is started by `muster env` and `muster test`\n", stderr);
  return 2;
}
