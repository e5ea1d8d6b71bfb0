#include "secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/text.h"
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

/// The limit is far above the size of a secret.
std::string read_all(const Descriptor& file) {
  char bytes[4096];
  std::string text;
  for (ssize_t got; text.size() < sizeof bytes && (got = ::read(file.get(), bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<std::size_t>(got));
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
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) refuse_file(path, log::str("cannot be read: ", std::generic_category().message(errno)));
  struct stat status {};
  const bool is_file = ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
  const bool is_private = (status.st_mode & 077) == 0;
  if (is_file && is_private) return Secret(read_all(file));
  refuse_file(
      path,
      is_file ? "may be read or written by others; say chmod 600, and take another secret if others had time to read it"
              : "is not a file");
}

Secret read_secret(const Environment& variables) {
  if (auto path = variables.find(kSecretFile)) return read_secret_file(*path);
  auto text = variables.find(kSecret);
  return text ? Secret(*text) : Secret();
}

Signature sign(const Secret& secret, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const auto part : parts) {
    for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(std::uint64_t{part.size()} >> shift);
    text += part;
  }
  const auto& key = secret.reveal();
  Signature signature{};
  unsigned int size = 0;
  if (!::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
              reinterpret_cast<const unsigned char*>(text.data()), text.size(), signature.data(), &size) ||
      size != kSignatureBytes)
    throw std::runtime_error("libcrypto gives no HMAC-SHA256");
  return signature;
}

bool is_signature(const Signature& expected, std::span<const std::uint8_t> bytes) noexcept {
  return bytes.size() == kSignatureBytes && ::CRYPTO_memcmp(expected.data(), bytes.data(), kSignatureBytes) == 0;
}

}  // namespace muster::cluster
