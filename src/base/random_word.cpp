#include "base/random_word.h"

#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <system_error>

namespace muster {
namespace {

/// Random letters from a number of them that divides 256, so that all are equally likely.
std::string random_text(std::size_t count, std::string_view letters) {
  std::string text(count, '\0');
  for (std::size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(text.data() + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "the system gives no random bytes");
    done += static_cast<std::size_t>(got);
  }
  for (char& byte : text) byte = letters[static_cast<unsigned char>(byte) % letters.size()];
  return text;
}

}  // namespace

std::string random_hex(std::size_t bytes) { return random_text(2 * bytes, "0123456789abcdef"); }

std::string random_word(std::size_t letters) { return random_text(letters, "abcdefghijkmnpqrstuvwxyz23456789"); }

}  // namespace muster
