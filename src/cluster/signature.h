#pragma once  // for other rooms

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "cluster/secret.h"

namespace muster::cluster {

inline constexpr std::size_t kSignatureBytes = 32;
using Signature = std::array<std::uint8_t, kSignatureBytes>;

/// HMAC-SHA256 with the job's secret. Each part is signed with its length and its index, so that no two lists of parts
/// have the same signature; the first part gives the purpose.
/// Requires: the secret is not empty.
Signature sign(const Secret& secret, std::initializer_list<std::string_view> parts);

/// Compares in constant time.
bool is_signature(const Signature& expected, std::span<const std::uint8_t> bytes) noexcept;

}  // namespace muster::cluster
