#include "cluster/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/log.h"
#include "base/random_word.h"
#include "base/trimmed.h"
#include "base/variables.h"
#include "muster/base/error.h"

namespace muster::cluster {
namespace {

constexpr std::size_t kFewest = 32;     // fewest characters of a secret
constexpr std::size_t kMadeBytes = 32;  // bytes of a new secret
constexpr const char* kBlanks = " \t\r\n";

[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& why) {
  throw ConfigError("MU068", log::str("the file of the job's secret, ", path.string(), ", ", why));
}

/// Reads and closes the descriptor. The limit is far above the size of a secret.
std::string read_all(int descriptor) {
  char bytes[4096];
  std::string text;
  for (ssize_t got; text.size() < sizeof bytes && (got = ::read(descriptor, bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<std::size_t>(got));
  ::close(descriptor);
  return text;
}

}  // namespace

Secret::Secret(const std::string& text) : text_(trimmed(text, kBlanks)) {
  if (text_.size() < kFewest)
    throw ConfigError("MU068", log::str("the job's secret has ", text_.size(), " characters, but at least ", kFewest,
                                        " are wanted, that nobody can guess: openssl rand -hex 32 prints some"));
}

Secret make_secret() { return Secret(random_hex(kMadeBytes)); }

Secret read_secret_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) refuse_file(path, log::str("cannot be read: ", std::generic_category().message(errno)));
  struct stat status {};
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const bool is_private = (status.st_mode & 077) == 0;
  if (is_file && is_private) return Secret(read_all(descriptor));
  ::close(descriptor);
  refuse_file(
      path,
      is_file ? "may be read or written by others; say chmod 600, and take another secret if others had time to read it"
              : "is no file");
}

Secret read_secret(const Environment& variables) {
  if (auto path = variables.find(kSecretFile)) return read_secret_file(*path);
  auto text = variables.find(kSecret);
  return text ? Secret(*text) : Secret();
}

}  // namespace muster::cluster
