#include "safetensors.h"

#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::format {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and is read in place");

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

constexpr ScalarType number(int value) { return static_cast<ScalarType>(value); }

using Element = ElementType;
constexpr std::array kScalarTypes{
    DtypeInfo{number(0), "uint8", 1, "ByteStorage", Element::u8},
    DtypeInfo{number(1), "int8", 1, "CharStorage", Element::i8},
    DtypeInfo{number(2), "int16", 2, "ShortStorage", Element::i16},
    DtypeInfo{number(3), "int32", 4, "IntStorage", Element::i32},
    DtypeInfo{number(4), "int64", 8, "LongStorage", Element::i64},
    DtypeInfo{number(5), "float16", 2, "HalfStorage", Element::f16},
    DtypeInfo{number(6), "float32", 4, "FloatStorage", Element::f32},
    DtypeInfo{number(7), "float64", 8, "DoubleStorage", Element::f64},
    DtypeInfo{number(8), "complex32", 4, "", std::nullopt},
    DtypeInfo{number(9), "complex64", 8, "ComplexFloatStorage", Element::c64},
    DtypeInfo{number(10), "complex128", 16, "ComplexDoubleStorage", std::nullopt},
    DtypeInfo{number(11), "bool", 1, "BoolStorage", Element::boolean},
    DtypeInfo{number(15), "bfloat16", 2, "BFloat16Storage", Element::bf16},
    DtypeInfo{number(18), "bits1x8", 1, "", std::nullopt},
    DtypeInfo{number(19), "bits2x4", 1, "", std::nullopt},
    DtypeInfo{number(20), "bits4x2", 1, "", std::nullopt},
    DtypeInfo{number(21), "bits8", 1, "", std::nullopt},
    DtypeInfo{number(22), "bits16", 2, "", std::nullopt},
    DtypeInfo{number(23), "float8_e5m2", 1, "", Element::f8_e5m2},
    DtypeInfo{number(24), "float8_e4m3fn", 1, "", Element::f8_e4m3},
    DtypeInfo{number(25), "float8_e5m2fnuz", 1, "", Element::f8_e5m2fnuz},
    DtypeInfo{number(26), "float8_e4m3fnuz", 1, "", Element::f8_e4m3fnuz},
    DtypeInfo{number(27), "uint16", 2, "", Element::u16},
    DtypeInfo{number(28), "uint32", 4, "", Element::u32},
    DtypeInfo{number(29), "uint64", 8, "", Element::u64},
    DtypeInfo{number(44), "float8_e8m0fnu", 1, "", Element::f8_e8m0},
    DtypeInfo{number(45), "float4_e2m1fn_x2", 1, "", Element::f4},
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kScalarAliases{{{"half", "float16"},
                                                                                       {"float", "float32"},
                                                                                       {"double", "float64"},
                                                                                       {"short", "int16"},
                                                                                       {"int", "int32"},
                                                                                       {"long", "int64"},
                                                                                       {"cfloat", "complex64"},
                                                                                       {"cdouble", "complex128"}}};

template <class Matches>
const DtypeInfo* find_row(Matches matches) {
  const auto found = std::find_if(kScalarTypes.begin(), kScalarTypes.end(), matches);
  return found == kScalarTypes.end() ? nullptr : &*found;
}

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

const DtypeInfo* find_scalar_type(ScalarType type) {
  return find_row([&](const DtypeInfo& row) { return row.type == type; });
}

const DtypeInfo* find_scalar_type(std::string_view name) {
  for (const auto& [alias, full] : kScalarAliases)
    if (alias == name) name = full;
  return find_row([&](const DtypeInfo& row) { return row.name == name; });
}

const DtypeInfo* find_storage_type(std::string_view storage) {
  if (storage.empty()) return nullptr;
  return find_row([&](const DtypeInfo& row) { return row.storage == storage; });
}

const DtypeInfo* find_scalar_type(ElementType element) {
  return find_row([&](const DtypeInfo& row) { return row.element == element; });
}

const DtypeInfo& dtype_info(ScalarType type) { return *find_scalar_type(type); }

namespace {

[[noreturn]] void refuse_header(std::string_view file, const std::string& reason) {
  throw CheckpointError("MU201", std::string(file) + ": " + reason + "; the file is damaged or not safetensors");
}

/// Walks the JSON of a header event by event, because a parsed document hides duplicate names. Until check_ranges(), a
/// tensor's `bytes` holds its end offset.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorEntry> tensors;
  Metadata metadata;
  std::string reason;

  bool start_object(std::size_t) override {
    if (place_ == Place::start) return enter(Place::root);
    if (place_ == Place::root) return enter(in_metadata_ ? Place::metadata : Place::tensor);
    return unexpected("an object");
  }

  bool end_object() override {
    if (place_ == Place::tensor && seen_ != kAllFields) return fail_tensor("lacks dtype, shape or data_offsets");
    return enter(place_ == Place::root ? Place::end : Place::root);
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && (field_ == shape_field || field_ == offsets_field)) return enter(Place::array);
    return unexpected("an array");
  }

  bool end_array() override {
    if (field_ == offsets_field && offsets_.size() != 2)
      return fail("data_offsets of " + in_quotes(tensors.back().name) + " are not two numbers");
    if (field_ == offsets_field) tensors.back().offset = offsets_[0];
    if (field_ == offsets_field) tensors.back().bytes = offsets_[1];
    return enter(Place::tensor);
  }

  bool key(std::string& name) override {
    if (place_ == Place::root) return root_key(name);
    if (place_ == Place::tensor) return tensor_key(name);
    metadata_key_ = name;
    return metadata.contains(name) ? fail("metadata " + in_quotes(name) + " comes twice") : true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) return metadata.emplace(metadata_key_, text).second;
    if (place_ != Place::tensor || field_ != dtype_field) return unexpected("a string");
    const auto type = element_type(text);
    if (!type)
      return fail_tensor("has the unknown dtype " + in_quotes(text) + "; the known ones are " + known_element_types());
    tensors.back().type = *type;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::array) return unexpected("a number");
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return fail_tensor("has a shape or offset beyond 63 bits");
    if (field_ == shape_field) tensors.back().shape.push_back(static_cast<std::int64_t>(number));
    if (field_ == offsets_field) offsets_.push_back(number);
    return offsets_.size() <= 2 || fail("data_offsets of " + in_quotes(tensors.back().name) + " are not two numbers");
  }

  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not a 64-bit integer");
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    // The parser's own message repeats the bad token, which may be megabytes long.
    return fail("its header is not JSON at byte " + std::to_string(position) + " (" +
                in_quotes(std::string_view(error.what()).substr(0, 60)) + ")");
  }

 private:
  enum class Place { start, root, metadata, tensor, array, end };
  enum Field : unsigned { no_field = 0, dtype_field = 1, shape_field = 2, offsets_field = 4 };
  static constexpr unsigned kAllFields = dtype_field | shape_field | offsets_field;

  bool enter(Place place) {
    place_ = place;
    return true;
  }

  bool fail(std::string why) {
    if (reason.empty()) reason = std::move(why);
    return false;
  }

  bool fail_tensor(const std::string& what) { return fail("tensor " + in_quotes(tensors.back().name) + " " + what); }

  bool unexpected(const std::string& what) {
    switch (place_) {
      case Place::metadata: return fail("metadata " + in_quotes(metadata_key_) + " is " + what + ", not a string");
      case Place::root:
        return fail((in_metadata_ ? "__metadata__" : "tensor " + in_quotes(tensors.back().name)) + " is " + what +
                    ", not an object");
      case Place::tensor:
      case Place::array: return fail_tensor("has " + what + " in its " + field_name());
      default: return fail("its header is " + what + ", not an object");
    }
  }

  std::string field_name() const {
    return field_ == dtype_field ? "dtype" : field_ == shape_field ? "shape" : "data_offsets";
  }

  bool root_key(const std::string& name) {
    if (!names_.insert(name).second) return fail("the name " + in_quotes(name) + " comes twice");
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) return true;
    tensors.emplace_back().name = name;
    seen_ = 0;
    field_ = no_field;
    return true;
  }

  bool tensor_key(const std::string& name) {
    field_ = name == "dtype"          ? dtype_field
             : name == "shape"        ? shape_field
             : name == "data_offsets" ? offsets_field
                                      : no_field;
    if (field_ == no_field) return fail_tensor("has the unknown field " + in_quotes(name));
    if (seen_ & field_) return fail_tensor("has " + field_name() + " twice");
    seen_ |= field_;
    offsets_.clear();
    return true;
  }

  std::unordered_set<std::string> names_;
  std::vector<std::uint64_t> offsets_;
  std::string metadata_key_;
  unsigned seen_ = 0;
  Field field_ = no_field;
  Place place_ = Place::start;
  bool in_metadata_ = false;
};

/// Converts the offsets to positions in the file, and checks that the tensors cover the data without gap or overlap.
void check_ranges(std::vector<TensorEntry>& tensors, std::uint64_t data_offset, std::uint64_t file_bytes,
                  std::string_view file) {
  const auto refuse = [&](const TensorEntry& tensor, const std::string& what) {
    refuse_header(file, "tensor " + in_quotes(tensor.name) + " " + what);
  };
  const std::uint64_t data_bytes = file_bytes - data_offset;
  for (TensorEntry& tensor : tensors) {
    const std::uint64_t begin = tensor.offset, end = tensor.bytes;
    const auto expected = byte_count(tensor.type, tensor.shape);
    if (!expected)
      refuse_header(file, "the shape of tensor " + in_quotes(tensor.name) + " has no size in whole bytes below 2^60");
    if (end < begin) refuse(tensor, "ends before it begins");
    if (end > data_bytes)
      refuse(tensor, "ends at byte " + std::to_string(end) + " of " + std::to_string(data_bytes) +
                         " bytes of data: the file is truncated");
    if (end - begin != *expected)
      refuse(tensor, "has " + std::to_string(end - begin) + " bytes, its shape needs " + std::to_string(*expected));
    tensor.bytes = end - begin;
    tensor.offset = data_offset + begin;
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t position = data_offset;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.offset < position) refuse(tensor, "overlaps another");
    if (tensor.offset > position) refuse_header(file, "there is a hole before tensor " + in_quotes(tensor.name));
    position += tensor.bytes;
  }
  if (position != file_bytes)
    refuse_header(file, std::to_string(file_bytes - position) + " bytes at its end belong to no tensor");
}

}  // namespace

std::uint64_t header_length(std::string_view start, std::uint64_t file_bytes, std::string_view file) {
  if (file_bytes < kLengthBytes || start.size() < kLengthBytes)
    refuse_header(file, "it has " + std::to_string(file_bytes) + " bytes, fewer than the 8 of the header's length");
  std::uint64_t length = 0;
  std::memcpy(&length, start.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    refuse_header(file, "its header would have " + std::to_string(length) + " bytes, more than the limit of " +
                            std::to_string(kMaxHeaderBytes));
  if (length > file_bytes - kLengthBytes)
    refuse_header(file, "its header would have " + std::to_string(length) + " bytes, but only " +
                            std::to_string(file_bytes - kLengthBytes) + " follow: the file is truncated");
  return length;
}

Header parse_header(std::string_view start, std::uint64_t file_bytes, std::string_view file) {
  const std::uint64_t length = header_length(start, file_bytes, file);
  const std::string_view json = start.substr(kLengthBytes, length);
  if (json.size() < length) refuse_header(file, "its header could not be read to the end");
  if (!json.starts_with('{')) refuse_header(file, "its header does not begin with '{'");
  // The JSON parser takes a zero byte for the end and would ignore the bytes after it.
  if (json.find('\0') != std::string_view::npos) refuse_header(file, "its header has a zero byte");
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) refuse_header(file, events.reason);
  Header header;
  header.data_offset = kLengthBytes + length;
  header.metadata = std::move(events.metadata);
  header.tensors = std::move(events.tensors);
  check_ranges(header.tensors, header.data_offset, file_bytes, file);
  return header;
}

namespace {

[[noreturn]] void refuse_to_write(std::string_view file, const std::string& reason) {
  throw CheckpointError("MU203", std::string(file) + " was not written: " + reason);
}

std::string as_json(const std::string& text, std::string_view file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    refuse_to_write(file, "a name or a metadata text is not UTF-8: " +
                              nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
}

void append_metadata(std::string& json, const Metadata& metadata, std::string_view file) {
  if (metadata.empty()) return;
  json += "\"__metadata__\":{";
  for (const auto& [key, text] : metadata) json += as_json(key, file) + ":" + as_json(text, file) + ",";
  json.back() = '}';
  json += ',';
}

void append_tensor(std::string& json, const TensorSpec& tensor, std::uint64_t begin, std::uint64_t end,
                   std::string_view file) {
  json += as_json(tensor.name, file) + ":{\"dtype\":\"" + std::string(name_of(tensor.type)) + "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) json += (i ? "," : "") + std::to_string(tensor.shape[i]);
  json += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]},";
}

void check_names(std::span<const TensorSpec> tensors, std::string_view file) {
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__") refuse_to_write(file, "the name __metadata__ is reserved; rename that tensor");
    if (!names.insert(tensor.name).second) refuse_to_write(file, "two tensors are named " + in_quotes(tensor.name));
  }
}

std::vector<std::size_t> data_order(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tensors[a].type != tensors[b].type) return tensors[a].type > tensors[b].type;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

}  // namespace

FilePlan plan_file(std::span<const TensorSpec> tensors, const Metadata& metadata, std::string_view file,
                   std::uint64_t head_alignment) {
  check_names(tensors, file);
  FilePlan plan;
  plan.order = data_order(tensors);
  std::string json = "{";
  append_metadata(json, metadata, file);
  std::uint64_t position = 0;
  for (const std::size_t i : plan.order) {
    const auto bytes = byte_count(tensors[i].type, tensors[i].shape);
    if (!bytes)
      refuse_to_write(file,
                      "the shape of tensor " + in_quotes(tensors[i].name) + " has no size in whole bytes below 2^60");
    append_tensor(json, tensors[i], position, position + *bytes, file);
    position += *bytes;
  }
  if (json.size() > 1) json.pop_back();
  json += '}';
  json.resize((kLengthBytes + json.size() + head_alignment - 1) / head_alignment * head_alignment - kLengthBytes, ' ');
  const std::uint64_t length = json.size();
  if (length > kMaxHeaderBytes)
    refuse_to_write(file, "its header would have " + std::to_string(length) + " bytes, more than the limit of " +
                              std::to_string(kMaxHeaderBytes) + "; spread the tensors over several files");
  plan.head.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  plan.head += json;
  plan.file_bytes = plan.head.size() + position;
  return plan;
}

}  // namespace muster::format
