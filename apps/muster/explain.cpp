#include <cstdio>

#include "base/text.h"
#include "commands.h"
#include "error_pages.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

std::string first_line(std::string_view text) { return std::string(text.substr(2, text.find('\n') - 2)); }

}  // namespace

int explain(const Arguments& arguments) {
  if (arguments.size() != 1 || arguments.front() == "--help") {
    std::puts("muster explain ID: prints cause and remedy of an error, such as MU031\n\nKnown:");
    for (const auto& page : error_pages()) std::printf("  %s\n", first_line(page.text).c_str());
    return arguments.size() == 1 ? 0 : 2;
  }
  const auto id = upper_case(arguments.front());
  for (const auto& page : error_pages())
    if (page.id == id) return std::printf("%.*s", static_cast<int>(page.text.size()), page.text.data()) < 0;
  throw UsageError("MU005", "there is no error '" + arguments.front() + "'" +
                                known_ones(error_pages(), [](const auto& page) { return page.id; }));
}

}  // namespace muster::cli
