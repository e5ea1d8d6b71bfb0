#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/memory_file.h"
#include "muster/base/error.h"

namespace muster::fuzz {

/// What a file holds may neither steer the terminal nor fill it.
inline void check_message(std::string_view message) {
  if (message.size() > 4096) __builtin_trap();
  for (const char c : message)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) __builtin_trap();
}

/// Reads; what is refused by name is as good as what is read. Anything else ends the program, and the fuzzer keeps the
/// input. MU200 is something else: a reader asked for bytes that the file does not have, in place of checking first.
template <class Read>
int read(const std::uint8_t* data, std::size_t size, Read&& reader) {
  try {
    reader(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error& error) {
    if (error.id().size() != 5 || !error.id().starts_with("MU2") || error.id() == "MU200") __builtin_trap();
    check_message(error.what());
  }
  return 0;
}

}  // namespace muster::fuzz
