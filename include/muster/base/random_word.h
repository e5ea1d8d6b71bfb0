#pragma once

#include <cstddef>
#include <string>

namespace muster {

/// So many bytes from the system's generator, as twice as many hexadecimal digits. Nobody can foresee them.
/// Throws: std::system_error if the system has none.
std::string random_hex(std::size_t bytes);

/// A word of small letters and digits for the name of a file, a folder or a job. Throws: as random_hex().
std::string random_word(std::size_t letters = 8);

}  // namespace muster
