#include "cluster/signature.h"

#include <stdexcept>
#include <string>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace muster::cluster {

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
