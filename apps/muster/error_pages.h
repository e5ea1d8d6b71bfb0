#pragma once

#include <string_view>
#include <vector>

namespace muster::cli {

/// A page of docs/errors, built into the program.
struct ErrorPage {
  std::string_view id;
  std::string_view text;
};

/// All pages, in the order of their ids.
const std::vector<ErrorPage>& error_pages();

}  // namespace muster::cli
