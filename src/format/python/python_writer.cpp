#include <bit>

#include "base/text.h"
#include "format/little_endian.h"
#include "format/python_file.h"
#include "format/zip.h"

namespace muster::format {
namespace {

using Made = PythonValue::Kind;
constexpr std::string_view kByteOrder = "little", kVersionText = "3\n";

/// Writes values with those opcodes of protocol 2 that torch.load's own reader knows.
class PickleText {
 public:
  explicit PickleText(const PythonFile& content) : content_(content), uniform_(uniform_types(content)) {}

  std::string write() {
    text_ = "\x80\x02";
    append(content_.value);
    return std::move(text_) + '.';
  }

 private:
  /// The common type of all views of each storage; nullptr if they differ, or if the type has no storage class.
  static std::vector<const DtypeInfo*> uniform_types(const PythonFile& content) {
    std::vector<const DtypeInfo*> types(content.storages.size(), nullptr);
    for (const PythonTensor& tensor : content.tensors) types[tensor.storage] = &dtype_info(tensor.type);
    for (const PythonTensor& tensor : content.tensors) {
      const DtypeInfo& row = dtype_info(tensor.type);
      if (types[tensor.storage] != &row || row.storage.empty() ||
          content.storages[tensor.storage].bytes % row.bytes != 0)
        types[tensor.storage] = nullptr;
    }
    return types;
  }

  void append(const PythonValue& value) {
    switch (value.kind) {
      case Made::none: text_ += 'N'; return;
      case Made::boolean: text_ += value.integer ? '\x88' : '\x89'; return;
      case Made::integer: append_integer(value.integer); return;
      case Made::number: append_double(value.number); return;
      case Made::text: append_text(value.text); return;
      case Made::bytes: append_bytes(value.text); return;
      case Made::list: append_list(value); return;
      case Made::tuple: append_tuple(value); return;
      case Made::map: append_map(value); return;
      case Made::tensor: append_tensor(content_.tensors[static_cast<std::size_t>(value.integer)]); return;
      case Made::foreign: return;
    }
  }

  void append_integer(std::int64_t value) {
    if (value >= 0 && value < 0x100) {
      text_ += 'K';
      append_number(text_, static_cast<std::uint8_t>(value));
    } else if (value >= 0 && value < 0x10000) {
      text_ += 'M';
      append_number(text_, static_cast<std::uint16_t>(value));
    } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
      text_ += 'J';
      append_number(text_, static_cast<std::int32_t>(value));
    } else {
      text_ += "\x8a\x08";
      append_number(text_, value);
    }
  }

  void append_double(double value) {
    text_ += 'G';
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) text_ += static_cast<char>(bits >> shift & 0xFF);
  }

  void append_text(std::string_view text) {
    if (!is_utf8(text)) return append_bytes(text);
    text_ += 'X';
    append_number(text_, static_cast<std::uint32_t>(text.size()));
    text_ += text;
  }

  /// Protocol 2 has no bytes: Python writes text with the same code points and a call that encodes it.
  void append_bytes(std::string_view bytes) {
    std::string wide;
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) wide += c;
      else wide.append({static_cast<char>(0xC0 | byte >> 6), static_cast<char>(0x80 | (byte & 0x3F))});
    }
    text_ += "c_codecs\nencode\n(";
    append_text(wide);
    append_text("latin1");
    text_ += "tR";
  }

  void append_list(const PythonValue& value) {
    text_ += ']';
    if (!value.items.empty()) append_items(value, 'e');
  }

  void append_tuple(const PythonValue& value) {
    if (value.items.empty()) text_ += ')';
    else append_items(value, 't');
  }

  void append_items(const PythonValue& value, char end) {
    text_ += '(';
    for (const PythonValue& item : value.items) append(item);
    text_ += end;
  }

  void append_map(const PythonValue& value) {
    text_ += '}';
    if (value.entries.empty()) return;
    text_ += '(';
    for (const auto& [key, item] : value.entries) {
      append(key);
      append(item);
    }
    text_ += 'u';
  }

  void append_integers(const std::vector<std::int64_t>& values) {
    PythonValue tuple{.kind = Made::tuple};
    for (const std::int64_t value : values) tuple.items.push_back(PythonValue::of_integer(value));
    append_tuple(tuple);
  }

  void append_tensor(const PythonTensor& tensor) {
    const DtypeInfo* type = uniform_[tensor.storage];
    const PythonStorage& storage = content_.storages[tensor.storage];
    text_ += type ? "ctorch._utils\n_rebuild_tensor_v2\n((" : "ctorch._utils\n_rebuild_tensor_v3\n((";
    append_text("storage");
    text_ += type ? "ctorch\n" + std::string(type->storage) + "\n" : "ctorch.storage\nUntypedStorage\n";
    append_text(std::to_string(tensor.storage));
    append_text("cpu");
    append_integer(static_cast<std::int64_t>(storage.bytes / (type ? type->bytes : 1)));
    text_ += "tQ";
    append_integer(tensor.offset);
    append_integers(tensor.shape);
    append_integers(tensor.strides);
    text_ +=
        "\x89"
        "ccollections\nOrderedDict\n)R";
    if (!type) text_ += "ctorch\n" + std::string(dtype_info(tensor.type).name) + "\n";
    if (tensor.conjugate || tensor.negative) {
      text_ += "}(";
      for (const auto& [word, on] : std::map<std::string, bool>{{"conj", tensor.conjugate}, {"neg", tensor.negative}}) {
        append_text(word);
        text_ += on ? '\x88' : '\x89';
      }
      text_ += 'u';
    }
    text_ += "tR";
  }

  const PythonFile& content_;
  std::vector<const DtypeInfo*> uniform_;
  std::string text_;
};

/// The size of the whole archive in bytes.
std::uint64_t archive_bytes(const std::string& folder, const PythonFile& content, std::uint64_t pickle_bytes) {
  ZipLayout layout;
  std::uint64_t bytes = 0;
  const auto add = [&](const std::string& name, std::uint64_t size) {
    bytes += layout.begin(folder + name, size, 0).size() + size;
  };
  add("data.pkl", pickle_bytes);
  add("byteorder", kByteOrder.size());
  for (std::size_t i = 0; i < content.storages.size(); ++i) add("data/" + std::to_string(i), content.storages[i].bytes);
  add("version", kVersionText.size());
  return bytes + layout.end().size();
}

}  // namespace

std::string write_pickle(const PythonFile& content) { return PickleText(content).write(); }

void write_python_file(AtomicFile& file, const PythonFile& content, std::string_view stem,
                       const std::function<std::string_view(std::size_t)>& bytes_of) {
  ZipLayout layout;
  const std::string folder = std::string(stem.empty() ? "archive" : stem) + "/";
  const auto add = [&](const std::string& name, std::string_view bytes) {
    const std::string head = layout.begin(folder + name, bytes.size(), crc32(bytes));
    file.write(std::array{std::string_view(head), bytes});
  };
  const std::string pickle = write_pickle(content);
  file.reserve(archive_bytes(folder, content, pickle.size()));
  add("data.pkl", pickle);
  add("byteorder", kByteOrder);
  for (std::size_t i = 0; i < content.storages.size(); ++i) add("data/" + std::to_string(i), bytes_of(i));
  add("version", kVersionText);
  const std::string end = layout.end();
  file.write(std::array{std::string_view(end)});
}

}  // namespace muster::format
