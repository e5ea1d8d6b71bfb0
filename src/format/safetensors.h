#pragma once  // for other rooms

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The safetensors format, as bytes. This file opens no files and does not use LibTorch tensors. Layout: 8 bytes
/// little-endian length N, N bytes of JSON padded with spaces, then the tensors' bytes without gaps.
/// docs/formats/safetensors.md describes every byte that is written and every reason for which a file is refused. All
/// functions are pure and may be called from any thread.
namespace muster::format {

/// The element types of the format, in the format's own order, which determines where data is in a file.
enum class ElementType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// The name in the file, such as "BF16".
std::string_view name_of(ElementType type);
/// Number of bits of one element: 4 to 64.
unsigned bits_of(ElementType type);
/// The type of that name; nullopt if there is none. Names are case-sensitive.
std::optional<ElementType> element_type(std::string_view name);
/// All names, separated by ", ", for messages.
std::string known_element_types();

/// Free text stored with the tensors; sorted, so that equal contents give equal bytes.
using Metadata = std::map<std::string, std::string>;

/// The description of one tensor in a file.
struct TensorSpec {
  std::string name;                 ///< UTF-8 name, not "__metadata__"
  std::vector<std::int64_t> shape;  ///< number of elements per dimension, outermost first; empty means one element
  ElementType type = ElementType::f32;
};

/// A tensor and the position of its bytes.
struct TensorEntry : TensorSpec {
  std::uint64_t offset = 0;  ///< offset in bytes from the start of the file
  std::uint64_t bytes = 0;
};

/// The checked header of a file: the entries cover everything after it exactly once.
struct Header {
  std::uint64_t data_offset = 0;  ///< offset of the tensors' bytes
  Metadata metadata;
  std::vector<TensorEntry> tensors;  ///< tensors in the order of their bytes
};

/// Limit on the length of a header in bytes, equal to that of the safetensors library.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Size of the length field before the JSON, in bytes.
inline constexpr std::uint64_t kLengthBytes = 8;

/// The number of bytes of a dense tensor; nullopt if a dimension is negative, the number does not fit in 63 bits, or
/// the elements do not fill whole bytes.
std::optional<std::uint64_t> byte_count(ElementType type, std::span<const std::int64_t> shape);

/// Length of the JSON, from the first 8 bytes of a file.
/// Requires: `start` holds the file's first bytes, at least 8 if the file has them.
/// Throws: CheckpointError MU201 if the file is too short or the length is impossible.
std::uint64_t header_length(std::string_view start, std::uint64_t file_bytes, std::string_view file);

/// Reads and checks the header of a file that may be hostile.
/// Requires: `start` holds the beginning of the file up to the end of the JSON, or the whole file if it is shorter.
/// `file` is the name used in messages.
/// Throws: CheckpointError MU201 with the reason.
Header parse_header(std::string_view start, std::uint64_t file_bytes, std::string_view file);

/// How a file will be written.
struct FilePlan {
  std::uint64_t file_bytes = 0;
  std::string head;                ///< length, JSON and padding: everything before the tensors' bytes
  std::vector<std::size_t> order;  ///< indices into the planned tensors, in the order of their bytes
};

/// Plans a file: larger element types first, then by name, with the header padded to a multiple of 8, so that every
/// tensor is aligned to its element size. The bytes are equal to those that the safetensors library writes.
/// `head_alignment`, a power of two of at least 8, pads the header further, so that the data begin at a multiple of it.
/// Throws: CheckpointError MU203 for a name that is repeated, reserved or not UTF-8, an impossible shape, or a header
/// that would be too long.
FilePlan plan_file(std::span<const TensorSpec> tensors, const Metadata& metadata, std::string_view file,
                   std::uint64_t head_alignment = 8);

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
