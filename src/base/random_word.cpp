#include "base/random_word.h"

#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <vector>

namespace muster {
namespace {

std::vector<unsigned char> random_bytes(std::size_t count) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(bytes.data() + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "the system gives no random bytes");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string spelled(const std::vector<unsigned char>& bytes, std::string_view letters) {
  std::string word;
  for (const unsigned char byte : bytes) word += letters[byte % letters.size()];
  return word;
}

}  // namespace

std::string random_hex(std::size_t bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return spelled(random_bytes(2 * bytes), kDigits);
}

// With 32 letters, all are equally likely.
std::string random_word(std::size_t letters) {
  return spelled(random_bytes(letters), "abcdefghijkmnpqrstuvwxyz23456789");
}

}  // namespace muster
