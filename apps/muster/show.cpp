#include <algorithm>
#include <cstdio>
#include <set>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/text.h"
#include "commands.h"
#include "format/json.h"
#include "format/stored_content.h"
#include "parse.h"

namespace muster::cli {
namespace {

using format::Json;
using format::PythonTensor;
using format::PythonValue;

/// A name from the file, escaped and cut to fit a table line.
std::string printable(std::string_view text) { return shown(text, 400); }

struct Totals {
  std::size_t tensors = 0;
  std::uint64_t elements = 0, bytes = 0, stored = 0;
};

Totals totals_of(const format::StoredContent& stored, const std::vector<format::ContentLeaf>& leaves) {
  Totals totals;
  std::set<std::size_t> storages;
  for (const auto& [path, value] : leaves) {
    if (value->kind != PythonValue::Kind::tensor) continue;
    const auto& tensor = stored.content.tensors[static_cast<std::size_t>(value->integer)];
    ++totals.tensors;
    totals.elements += static_cast<std::uint64_t>(format::element_count(tensor.shape));
    totals.bytes += format::dense_bytes(tensor);
    if (storages.insert(tensor.storage).second)
      for (const auto& extent : stored.extents[tensor.storage]) totals.stored += extent.bytes;
  }
  return totals;
}

void print_table(const format::StoredContent& stored, const std::vector<format::ContentLeaf>& leaves) {
  std::size_t widest = 4, shapes = 5;
  const auto tensor_of = [&](const PythonValue& value) -> const PythonTensor& {
    return stored.content.tensors[static_cast<std::size_t>(value.integer)];
  };
  for (const auto& [path, value] : leaves) {
    widest = std::max(widest, std::min<std::size_t>(path.size(), 80));
    if (value->kind == PythonValue::Kind::tensor) shapes = std::max(shapes, shape_text(tensor_of(*value).shape).size());
  }
  for (const auto& [path, value] : leaves)
    if (value->kind == PythonValue::Kind::tensor) {
      const auto& tensor = tensor_of(*value);
      std::printf("  %-*s  %-14s %-*s  %s\n", static_cast<int>(widest), printable(path).c_str(),
                  std::string(dtype_info(tensor.type).name).c_str(), static_cast<int>(shapes),
                  shape_text(tensor.shape).c_str(), size_text(format::dense_bytes(tensor)).c_str());
    }
  for (const auto& [path, value] : leaves)
    if (value->kind != PythonValue::Kind::tensor)
      std::printf("  %-*s  %s\n", static_cast<int>(widest), printable(path).c_str(),
                  format::to_text(*value, 60).c_str());
  for (const auto& [name, text] : stored.metadata)
    std::printf("  metadata %s: %s\n", printable(name).c_str(), shown(text, 200).c_str());
}

void print_plain(const std::string& path, const format::StoredContent& stored,
                 const std::vector<format::ContentLeaf>& leaves) {
  const Totals totals = totals_of(stored, leaves);
  std::printf("%s: %s\n", printable(path).c_str(), stored.kind.c_str());
  print_table(stored, leaves);
  std::printf("%zu tensors, %llu elements, %s", totals.tensors, static_cast<unsigned long long>(totals.elements),
              size_text(totals.bytes).c_str());
  if (totals.stored != totals.bytes) std::printf(" (%s stored)", size_text(totals.stored).c_str());
  std::printf("\n");
}

std::string valid_text(const std::string& text) { return is_utf8(text) ? text : shown(text, 400); }

void print_json(const std::string& path, const format::StoredContent& stored,
                const std::vector<format::ContentLeaf>& leaves) {
  const Totals totals = totals_of(stored, leaves);
  Json::List tensors;
  Json::Map values, metadata;
  for (const auto& [place, value] : leaves) {
    if (value->kind != PythonValue::Kind::tensor) {
      values.emplace_back(valid_text(place), format::to_text(*value, 200));
      continue;
    }
    const auto& tensor = stored.content.tensors[static_cast<std::size_t>(value->integer)];
    Json::List shape;
    for (const auto size : tensor.shape) shape.emplace_back(size);
    tensors.emplace_back(Json::Map{{"name", valid_text(place)},
                                   {"dtype", std::string(dtype_info(tensor.type).name)},
                                   {"shape", std::move(shape)},
                                   {"bytes", static_cast<std::int64_t>(format::dense_bytes(tensor))}});
  }
  for (const auto& [name, text] : stored.metadata) metadata.emplace_back(name, text);
  const Json all = Json::Map{{"path", valid_text(path)},
                             {"kind", stored.kind},
                             {"tensors", std::move(tensors)},
                             {"values", std::move(values)},
                             {"metadata", std::move(metadata)},
                             {"elements", static_cast<std::int64_t>(totals.elements)},
                             {"bytes", static_cast<std::int64_t>(totals.bytes)},
                             {"stored_bytes", static_cast<std::int64_t>(totals.stored)}};
  std::puts(format::to_text(all).c_str());
}

struct ShowCall {
  std::string path;
  bool json = false;
};

void declare(CLI::App& app, ShowCall& call) {
  app.add_option("PATH", call.path, "file or folder")->required();
  app.add_flag("--json,!--no-json,!--no_json", call.json, "print one line of JSON");
}

}  // namespace

std::vector<options::Description> show_flags() {
  CLI::App app;
  ShowCall call;
  declare(app, call);
  return described(app);
}

int show(const Arguments& arguments) {
  CLI::App app(
      "Lists what a file of weights holds: names, dtypes, shapes, sizes, other values, metadata.\nReads torch files of "
      "any form, "
      "safetensors files, indexes and folders of them, and checkpoint folders; no tensor is read and nothing executed.",
      "muster show");
  ShowCall call;
  declare(app, call);
  if (parse(app, arguments)) return 0;
  const auto& [path, json] = call;
  const auto stored = format::open_content(path);
  const auto leaves = format::leaves_of(stored.content.value);
  (json ? print_json : print_plain)(path, stored, leaves);
  return 0;
}

}  // namespace muster::cli
