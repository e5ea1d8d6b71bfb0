#pragma once

#include <memory>
#include <string>

#include "format/memory_file.h"
#include "format/python_file.h"

namespace muster::checks {

/// A value as one line of text; a tensor as its type, shape, strides, offset and storage.
inline std::string described(const format::PythonValue& value, const format::PythonFile& file) {
  using Kind = format::PythonValue::Kind;
  const auto joined = [&](const auto& items, const char* open, const char* close, auto&& one) {
    std::string text = open;
    for (std::size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + one(items[i]);
    return text + close;
  };
  const auto item = [&](const format::PythonValue& one) { return described(one, file); };
  switch (value.kind) {
    case Kind::none: return "None";
    case Kind::boolean: return value.integer ? "True" : "False";
    case Kind::integer: return std::to_string(value.integer);
    case Kind::number: {
      char text[32];
      std::snprintf(text, sizeof text, "%g", value.number);
      return std::string(text) + "f";
    }
    case Kind::text: return "'" + value.text + "'";
    case Kind::bytes: return "b" + std::to_string(value.text.size());
    case Kind::list: return joined(value.items, "[", "]", item);
    case Kind::tuple: return joined(value.items, "(", ")", item);
    case Kind::map:
      return joined(value.entries, "{", "}",
                    [&](const auto& entry) { return item(entry.first) + ": " + item(entry.second); });
    case Kind::foreign: return "<" + value.text + ">";
    case Kind::tensor: {
      const auto& tensor = file.tensors.at(static_cast<std::size_t>(value.integer));
      const auto number = [](std::int64_t one) { return std::to_string(one); };
      return std::string(dtype_info(tensor.type).name) + joined(tensor.shape, "[", "]", number) +
             joined(tensor.strides, "/", "", number) + "+" + std::to_string(tensor.offset) + "@" +
             std::to_string(tensor.storage) + (tensor.conjugate ? " conj" : "");
    }
  }
  return "?";
}

inline std::filesystem::path python_file(const std::string& name) {
  return std::filesystem::path(MUSTER_SOURCE_DIR) / "tests/format/python_files" / name;
}

}  // namespace muster::checks
