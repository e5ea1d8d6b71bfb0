// Names that a hostile file holds must neither steer the terminal nor fill it, whatever reads the file.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checks.h"
#include "format/convert.h"
#include "format/manifest.h"
#include "format/python_file.h"
#include "format/safetensors.h"
#include "format/stored_content.h"
#include "format/weight_set.h"
#include "format/zip.h"
#include "muster/base/error.h"
#include "python_values.h"

namespace muster::format {
namespace {

using namespace std::string_literals;
using nlohmann::json;

const std::string kNames[] = {
    "\x1b[2Jgone", "\u009b31mred",   "\u202egnp.exe",           "line\n\nmuster: MU999: all is well",
    "\x7f",        "back\\x1bslash", std::string(100'000, 'a'), std::string(50'000, '\x1b')};

bool steers(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
  return text.find("\u009b") != std::string_view::npos || text.find("\u202e") != std::string_view::npos;
}

template <class Action>
void expect_tame(std::string_view id, Action&& action) {
  try {
    action();
    ADD_FAILURE() << id << " was not thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), id);
    EXPECT_FALSE(steers(error.what())) << error.what();
    EXPECT_LT(std::string_view(error.what()).size(), 1500u);
  }
}

TEST(HostileNames, OfSafetensorsHeaders) {
  for (const auto& name : kNames) {
    const auto read = [](const json& header) {
      const std::string bytes = checks::file_of(header.dump(), "12345678");
      parse_header(bytes, bytes.size(), "file");
    };
    const json good{{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8}}};
    expect_tame("MU201", [&] { read({{name, {{"dtype", name}, {"shape", {2}}, {"data_offsets", {0, 8}}}}}); });
    expect_tame("MU201", [&] { read({{name, {{name, 1}}}}); });
    expect_tame("MU201", [&] { read({{name, 1}}); });
    expect_tame("MU201", [&] { read({{name, good}, {"other", good}}); });
    expect_tame("MU201", [&] { read({{"__metadata__", {{name, 1}}}}); });
    const std::string broken = checks::file_of("{\"" + name + "\":\"" + name);
    expect_tame("MU201", [&] { parse_header(broken, broken.size(), "file"); });
  }
}

TEST(HostileNames, OfWeightIndexes) {
  for (const auto& name : kNames) {
    const std::string text = json(name).dump();
    expect_tame("MU205", [&] { parse_index("{\"weight_map\":{" + text + ":1}}", "file"); });
    expect_tame("MU205", [&] { parse_index("{\"weight_map\":{" + text + ":\"a\"," + text + ":\"b\"}}", "file"); });
    expect_tame("MU205", [&] { parse_index("{\"weight_map\":{" + text + ":\"/\"}}", "file"); });
    expect_tame("MU205", [&] { parse_index("{\"weight_map\":{\"a\":" + json("/" + name).dump() + "}}", "file"); });
    expect_tame("MU205", [&] { parse_index("{\"weight_map\":" + name, "file"); });
    if (steers(name))
      expect_tame("MU205", [&] {
        parse_index("{\"weight_map\":{\"a\":" + text + "}}", "file");
      });  // no file is looked for by such a name
  }
}

TEST(HostileNames, OfManifestsAndSlices) {
  for (const auto& name : kNames) {
    const json manifest{
        {"format", name}, {"version", 1}, {"id", "x"}, {"ranks", json::array()}, {"checksum", "0000000000000000"}};
    expect_tame("MU210", [&] { parse_manifest(manifest.dump(), "file"); });
    const json ranks{{"format", "muster checkpoint"},
                     {"version", 1},
                     {"id", name},
                     {"checksum", "0000000000000000"},
                     {"ranks", {{{"file", name}, {"bytes", 1}, {"checksum", "0000000000000000"}}}}};
    expect_tame("MU210", [&] { parse_manifest(ranks.dump(), "file"); });
    expect_tame("MU214", [&] { check_shards({{.name = name, .shape = {4}, .dtype = "F32", .count = 3}}, "folder"); });
  }
}

std::string sized(const std::string& text) {
  const auto bytes = static_cast<std::uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + text;
}

std::string torch_file(const std::string& pickle) {
  ZipLayout layout;
  std::string bytes = layout.begin("a/data.pkl", pickle.size(), crc32(pickle)) + pickle;
  return bytes + layout.end();
}

TEST(HostileNames, OfFilesOfPython) {
  checks::ScratchFolder folder;
  for (const auto& name : kNames) {
    const std::string class_name = name.substr(0, name.find('\n')).substr(0, 1000);
    checks::write(folder / "x.pt", torch_file("}(" + sized(name.substr(0, 4000)) + "c" + class_name + "\nname\n)Ru."));
    expect_tame("MU226", [&] { convert(folder / "x.pt", folder / "y.pt"); });
    const auto left_out =
        convert(folder / "x.pt", folder / "y.pt", {.durability = Durability::none, .leave_out = true}).left_out;
    ASSERT_EQ(left_out.size(), 1u);
    EXPECT_FALSE(steers(left_out[0])) << left_out[0];
    expect_tame("MU229", [&] { convert(folder / "x.pt", folder / "y.pt", {.part = "nothing"}); });
    checks::write(folder / "x.pt", torch_file("}(" + sized(name.substr(0, 4000)) + sized(name) + "u."));
    expect_tame("MU229", [&] { convert(folder / "x.pt", folder / "y.safetensors"); });
    EXPECT_FALSE(steers(to_text(PythonValue::of_text(name), 60)));
    EXPECT_LT(to_text(PythonValue::of_text(name), 60).size(), 80u);
    const auto read = [&](const std::string& pickle) {
      read_python_file(checks::in_memory(torch_file(pickle), "file"));
    };
    const auto storage = [&](const std::string& type, const std::string& key) {
      return "ctorch._utils\n_rebuild_tensor_v2\n(("s + sized("storage") + "ctorch\n" + type + "\n" + sized(key) +
             sized("cpu") + "K\4tQK\0K\4\x85K\1\x85\x89NtR."s;
    };
    expect_tame("MU225", [&] { read(storage("FloatStorage", name)); });
    expect_tame("MU225", [&] { read(storage(class_name, "0")); });
  }
}

}  // namespace
}  // namespace muster::format
