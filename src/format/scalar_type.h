#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "format/safetensors.h"

namespace muster::format {

/// A LibTorch dtype, by the number of c10::ScalarType. Every value has a DtypeInfo.
enum class ScalarType : std::uint8_t { uint8 = 0, int64 = 4, float32 = 6, boolean = 11 };

/// The properties of a dtype.
struct DtypeInfo {
  ScalarType type;
  std::string_view name;               ///< Python's name without "torch.": "float32"
  unsigned bytes;                      ///< size of one element in bytes
  std::string_view storage;            ///< Python's storage class, such as "FloatStorage"; empty if there is none
  std::optional<ElementType> element;  ///< corresponding type in a safetensors file, if there is one
};

/// Finds a type by number; nullptr for an unknown one. Throws: nothing.
const DtypeInfo* find_scalar_type(ScalarType type);
/// Finds a type by name: "float32", or an alias such as "half".
const DtypeInfo* find_scalar_type(std::string_view name);
/// Finds a type by storage class: "FloatStorage".
const DtypeInfo* find_storage_type(std::string_view storage);
/// LibTorch's type for a safetensors element type, or nullptr.
const DtypeInfo* find_scalar_type(ElementType element);

/// Requires: the type has a DtypeInfo.
const DtypeInfo& dtype_info(ScalarType type);

}  // namespace muster::format
