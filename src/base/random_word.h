#pragma once  // for other rooms

#include <cstddef>
#include <string>

namespace muster {

/// `bytes` bytes from the system's random generator, as twice as many hexadecimal digits. They are unpredictable.
/// Throws: std::system_error if the system has no generator.
std::string random_hex(std::size_t bytes);

/// A word of lowercase letters and digits for the name of a file, a folder or a job. Throws: as random_hex().
std::string random_word(std::size_t letters = 8);

}  // namespace muster
