#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "base/shown.h"
#include "format/safetensors.h"
#include "muster/base/error.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian and is read in place");

namespace muster::format {
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
    if (place_ == Place::tensor && seen_ != kAllFields)
      return fail("tensor " + in_quotes(tensors.back().name) + " lacks dtype, shape or data_offsets");
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
      return fail("tensor " + in_quotes(tensors.back().name) + " has the unknown dtype " + in_quotes(text) +
                  "; the known ones are " + known_element_types());
    tensors.back().type = *type;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::array) return unexpected("a number");
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return fail("tensor " + in_quotes(tensors.back().name) + " has a shape or offset beyond 63 bits");
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

  bool unexpected(const std::string& what) {
    switch (place_) {
      case Place::metadata: return fail("metadata " + in_quotes(metadata_key_) + " is " + what + ", not a string");
      case Place::root:
        return fail((in_metadata_ ? "__metadata__" : "tensor " + in_quotes(tensors.back().name)) + " is " + what +
                    ", not an object");
      case Place::tensor:
      case Place::array:
        return fail("tensor " + in_quotes(tensors.back().name) + " has " + what + " in its " + field_name());
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
    if (field_ == no_field)
      return fail("tensor " + in_quotes(tensors.back().name) + " has the unknown field " + in_quotes(name));
    if (seen_ & field_) return fail("tensor " + in_quotes(tensors.back().name) + " has " + field_name() + " twice");
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
  for (TensorEntry& tensor : tensors) {
    const std::uint64_t begin = tensor.offset, end = tensor.bytes;
    const auto expected = byte_count(tensor.type, tensor.shape);
    if (!expected)
      refuse_header(file, "the shape of tensor " + in_quotes(tensor.name) + " has no size in whole bytes below 2^60");
    if (end < begin) refuse_header(file, "tensor " + in_quotes(tensor.name) + " ends before it begins");
    if (end > file_bytes - data_offset)
      refuse_header(file, "tensor " + in_quotes(tensor.name) + " ends at byte " + std::to_string(end) + " of " +
                              std::to_string(file_bytes - data_offset) + " bytes of data: the file is truncated");
    if (end - begin != *expected)
      refuse_header(file, "tensor " + in_quotes(tensor.name) + " has " + std::to_string(end - begin) +
                              " bytes, its shape needs " + std::to_string(*expected));
    tensor.bytes = end - begin;
    tensor.offset = data_offset + begin;
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t position = data_offset;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.offset < position) refuse_header(file, "tensor " + in_quotes(tensor.name) + " overlaps another");
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

}  // namespace muster::format
