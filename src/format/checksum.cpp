#include "format/checksum.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#ifdef MUSTER_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // selects the widest vectors of this processor; redefines the names used below
#endif

#include <charconv>
#include <new>

namespace muster::format {
namespace {

XXH3_state_t* state_in(std::array<std::byte, 576>& room) {
  return std::launder(reinterpret_cast<XXH3_state_t*>(room.data()));
}

}  // namespace

static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64);

Checksum::Checksum() {
  new (state_.data()) XXH3_state_t;
  reset();
}

void Checksum::reset() { XXH3_64bits_reset(state_in(state_)); }

void Checksum::update(const void* data, std::size_t bytes) { XXH3_64bits_update(state_in(state_), data, bytes); }

std::uint64_t Checksum::value() const {
  return XXH3_64bits_digest(state_in(const_cast<std::array<std::byte, 576>&>(state_)));
}

std::uint64_t checksum_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string to_hex(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[static_cast<std::size_t>(i)] = kDigits[value & 15];
  return text;
}

std::optional<std::uint64_t> from_hex(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return to_hex(value) == digits ? std::optional(value) : std::nullopt;  // also for another length, and upper case
}

}  // namespace muster::format
