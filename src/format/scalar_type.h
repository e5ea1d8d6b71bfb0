#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "format/safetensors.h"

namespace muster::format {

/// A LibTorch dtype, by LibTorch's own number (c10::ScalarType). Values are always types that have a DtypeInfo.
enum class ScalarType : std::uint8_t { uint8 = 0, int64 = 4, float32 = 6, boolean = 11 };

/// The properties of one type.
struct DtypeInfo {
  ScalarType type;
  std::string_view name;     ///< Python's, without "torch.": "float32".
  unsigned bytes;            ///< Bytes of one element.
  std::string_view storage;  ///< Python's class of its storages, such as "FloatStorage"; empty for a type without one.
  std::optional<ElementType> element;  ///< The same type in a safetensors file, if it exists there.
};

/// Throws: nothing; an unknown number gives nullptr.
const DtypeInfo* find_scalar_type(ScalarType type);
/// By name: "float32", or an alias such as "half".
const DtypeInfo* find_scalar_type(std::string_view name);
/// By storage class: "FloatStorage".
const DtypeInfo* find_storage_type(std::string_view storage);
/// LibTorch's type for a safetensors element type, or nullptr.
const DtypeInfo* find_scalar_type(ElementType element);

/// Requires: the type has a row.
const DtypeInfo& dtype_info(ScalarType type);

}  // namespace muster::format
