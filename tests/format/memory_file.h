#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "format/input_file.h"

namespace muster::checks {

/// A file in memory. Requires: the bytes outlive it.
inline format::InputFile in_memory(std::string_view bytes, std::filesystem::path name) {
  return {std::move(name), bytes.size(),
          [bytes](std::uint64_t offset, char* to, std::size_t count) { bytes.copy(to, count, offset); }};
}

}  // namespace muster::checks
