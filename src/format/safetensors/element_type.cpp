#include <array>

#include "base/listing.h"
#include "format/safetensors.h"

namespace muster::format {
namespace {

struct Row {
  std::string_view name;
  unsigned bits;
};

constexpr std::array<Row, 22> kTypes{
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};
static_assert(static_cast<std::size_t>(ElementType::u64) + 1 == kTypes.size());

}  // namespace

std::string_view name_of(ElementType type) { return kTypes.at(static_cast<std::size_t>(type)).name; }

unsigned bits_of(ElementType type) { return kTypes.at(static_cast<std::size_t>(type)).bits; }

std::optional<ElementType> element_type(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<ElementType>(i);
  return std::nullopt;
}

std::string known_element_types() {
  return joined(kTypes, [](const Row& row) { return row.name; });
}

std::optional<std::uint64_t> byte_count(ElementType type, std::span<const std::int64_t> shape) {
  // Strides are computed with empty dimensions counted as 1, so that product must not overflow either.
  std::int64_t bits = bits_of(type);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty |= size == 0;
    if (__builtin_mul_overflow(bits, size == 0 ? 1 : size, &bits)) return std::nullopt;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(bits) / 8;
}

}  // namespace muster::format
