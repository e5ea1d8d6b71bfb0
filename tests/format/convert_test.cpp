#include "format/convert.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checks.h"
#include "format/stored_content.h"
#include "format/weight_set.h"
#include "muster/base/error.h"
#include "python_values.h"

namespace muster::format {
namespace {

using checks::expect_error;
using checks::python_file;
using checks::ScratchFolder;

ConvertOptions quickly(std::string part = {}) { return {.durability = Durability::none, .part = std::move(part)}; }

std::vector<float> values(const StoredContent& stored, const std::string& name) {
  const PythonValue* value = stored.content.value.find(name);
  if (!value) return {};
  ContentBytes reader(stored);
  const std::string_view bytes = reader.of_tensor(stored.content.tensors[static_cast<std::size_t>(value->integer)]);
  std::vector<float> result(bytes.size() / sizeof(float));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

TEST(ConvertTest, TorchBecomesSafetensorsWithViewsDenseAndTiesOnce) {
  ScratchFolder folder;
  for (const char* name : {"zip.pt", "legacy.pt"}) {
    const auto report = convert(python_file(name), folder / "x.safetensors", quickly("state_dict"));
    EXPECT_EQ(report.tensors, 5u);
    EXPECT_EQ(report.to, WeightForm::safetensors);
    const StoredContent stored = open_content(folder / "x.safetensors");
    EXPECT_EQ(values(stored, "transposed"), (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
    EXPECT_EQ(values(stored, "every_second"), (std::vector<float>{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(values(stored, "row"), (std::vector<float>{4, 5, 6, 7}));
    EXPECT_EQ(values(stored, "again"), values(stored, "tied"));
    EXPECT_EQ(stored.metadata.at("tied"), "again");
    EXPECT_EQ(stored.metadata.at("format"), "pt");
  }
}

TEST(ConvertTest, SafetensorsAndBackIsTheSameToTheByte) {
  ScratchFolder folder;
  convert(python_file("zip.pt"), folder / "a.safetensors", quickly("state_dict"));
  convert(folder / "a.safetensors", folder / "b.pt", quickly());
  convert(folder / "b.pt", folder / "c.safetensors", quickly());
  EXPECT_EQ(checks::read(folder / "a.safetensors"), checks::read(folder / "c.safetensors"));
  convert(folder / "a.safetensors", folder / "shards", {.durability = Durability::none, .max_shard_size = 60});
  EXPECT_TRUE(std::filesystem::exists(folder / "shards" / "model.safetensors.index.json"));
  convert(folder / "shards", folder / "d.safetensors", quickly());
  EXPECT_EQ(checks::read(folder / "a.safetensors"), checks::read(folder / "d.safetensors"));
}

TEST(ConvertTest, LegacyBecomesAnArchiveWithTheSameValues) {
  ScratchFolder folder;
  convert(python_file("legacy.pt"), folder / "x.pt", quickly());
  const PythonFile old = read_python_file(format::InputFile(python_file("legacy.pt"))),
                   made = read_python_file(format::InputFile(folder / "x.pt"));
  EXPECT_EQ(checks::described(made.value, made), checks::described(old.value, old));
  EXPECT_EQ(made.form, PythonFile::Form::zip);
}

TEST(ConvertTest, OnlyWhatAPartUsesIsWritten) {
  ScratchFolder folder;
  convert(python_file("zip.pt"), folder / "x.pt", quickly("optimizer/state/0"));
  const PythonFile made = read_python_file(format::InputFile(folder / "x.pt"));
  EXPECT_EQ(checks::described(made.value, made), "{'step': float32[]/+0@0}");
  EXPECT_EQ(made.storages.size(), 1u);
  convert(python_file("cpp_module.pt"), folder / "y.safetensors", {.durability = Durability::none, .strip = "fc."});
  EXPECT_EQ(values(open_content(folder / "y.safetensors"), "weight").size(), 6u);
}

/// A torch file of a map with these entries, whose tensors are numbers of one storage.
std::filesystem::path saved(std::vector<PythonValue::Entry> entries, const std::filesystem::path& path) {
  PythonFile content;
  content.value.kind = PythonValue::Kind::map;
  for (auto& [name, value] : entries) content.value.entries.push_back({std::move(name), std::move(value)});
  content.storages.resize(1);
  content.storages[0].bytes = 8;
  content.tensors.resize(2);
  content.tensors[1].offset = 1;
  static const std::string kBytes(8, '\1');
  AtomicFile file(path, Durability::none);
  write_python_file(file, content, "s", [](std::size_t) { return std::string_view(kBytes); });
  file.publish();
  return path;
}

PythonValue::Entry state_dict_of(const char* name, std::size_t tensor) {
  PythonValue weights;
  weights.kind = PythonValue::Kind::map;
  weights.entries.push_back({PythonValue::of_text("w"), PythonValue::of_tensor(tensor)});
  return {PythonValue::of_text(name), weights};
}

TEST(ConvertTest, TheOnlyStateDictOfATrainingScriptsFileIsTaken) {
  ScratchFolder folder;
  const auto report = convert(python_file("zip.pt"), folder / "x.safetensors", quickly());
  EXPECT_EQ(report.tensors, 5u);
  EXPECT_THAT(report.left_out, testing::IsSupersetOf({"optimizer", "epoch"}));
  convert(python_file("zip.pt"), folder / "y.safetensors", quickly("state_dict"));
  EXPECT_EQ(checks::read(folder / "x.safetensors"), checks::read(folder / "y.safetensors"));
}

TEST(ConvertTest, SeveralStateDictsAreNamed) {
  ScratchFolder folder;
  const auto file = saved(
      {state_dict_of("model", 0), state_dict_of("ema", 1), {PythonValue::of_text("epoch"), PythonValue::of_integer(3)}},
      folder / "s.pt");
  expect_error<CheckpointError>("MU229", "several state dicts: model, ema; say which one to convert by --key",
                                [&] { convert(file, folder / "x.safetensors"); });
  EXPECT_EQ(convert(file, folder / "x.safetensors", quickly("ema")).tensors, 1u);
}

TEST(ConvertTest, WhatAFormCannotHoldIsNamed) {
  ScratchFolder folder;
  expect_error<CheckpointError>("MU229", "'step' is 3", [&] {
    convert(saved({{PythonValue::of_text("step"), PythonValue::of_integer(3)}}, folder / "s.pt"),
            folder / "x.safetensors");
  });
  expect_error<CheckpointError>("MU229", "it has: state_dict, scalar",
                                [&] { convert(python_file("zip.pt"), folder / "x.pt", quickly("model")); });
  expect_error<CheckpointError>("MU229", "lazily",
                                [&] { convert(python_file("new_dtypes.pt"), folder / "x.safetensors"); });
  expect_error<CheckpointError>("MU226", "'config' is an object of '__main__.Foreign'",
                                [&] { convert(python_file("foreign.pt"), folder / "x.pt"); });
  expect_error<UsageError>("MU230", "does not tell what to write",
                           [&] { convert(python_file("zip.pt"), folder / "x.txt"); });
  expect_error<UsageError>("MU230", "there are: torch, safetensors, folder, lightning", [] { weight_form("pickle"); });
  EXPECT_EQ(checks::entries(folder.path()), 1u);  // s.pt
}

TEST(ConvertTest, WhatIsNotUnderstoodCanBeLeftOut) {
  ScratchFolder folder;
  const auto report =
      convert(python_file("foreign.pt"), folder / "x.pt", {.durability = Durability::none, .leave_out = true});
  EXPECT_EQ(report.left_out.size(), 6u);
  const PythonFile made = read_python_file(format::InputFile(folder / "x.pt"));
  EXPECT_EQ(checks::described(made.value, made), "{'model': {'w': float32[2]/1+0@0}}");
}

TEST(ConvertTest, PlainValuesCanBeLeftOut) {
  ScratchFolder folder;
  const auto file = saved({{PythonValue::of_text("w"), PythonValue::of_tensor(0)},
                           {PythonValue::of_text("kind"), PythonValue::of_text("rnn")}},
                          folder / "s.pt");
  const auto report = convert(file, folder / "x.safetensors", {.durability = Durability::none, .leave_out = true});
  EXPECT_EQ(report.tensors, 1u);
  EXPECT_EQ(report.left_out, std::vector<std::string>{"kind"});
}

TEST(ConvertTest, AScriptedModulesOtherAttributesAreLeftOut) {
  ScratchFolder folder;
  const auto report = convert(python_file("scripted.pt"), folder / "x.safetensors", quickly());
  std::vector<std::string> names;
  for (const auto& entry : open_content(folder / "x.safetensors").content.value.entries)
    names.push_back(entry.first.text);
  EXPECT_THAT(names, testing::ElementsAre("mean", "part.lin.bias", "part.lin.weight", "scale"));
  EXPECT_THAT(report.left_out, testing::UnorderedElementsAre("deep", "device", "dtype", "enumerated", "kind", "mixed",
                                                             "names", "nothing", "pair", "part.name", "phase", "points",
                                                             "rate", "sizes", "table", "tensors"));
  EXPECT_THAT(convert(python_file("scripted.pt"), folder / "y.pt", quickly()).left_out,
              testing::UnorderedElementsAre("enumerated", "phase"));
  EXPECT_EQ(convert(python_file("scripted.pt"), folder / "folder", quickly()).tensors, 4u);
}

TEST(ConvertTest, AFrozenModuleHasNoWeights) {
  ScratchFolder folder;
  expect_error<CheckpointError>("MU229", "torch.jit.freeze",
                                [&] { convert(python_file("frozen.pt"), folder / "x.safetensors"); });
}

TEST(ConvertTest, FoldersOfTorchFilesAreRead) {  // MU205
  ScratchFolder folder;
  const auto weights = [&](const std::string& sub_folder, const std::string& index) {
    std::filesystem::create_directories(folder / sub_folder);
    if (!index.empty()) checks::write(folder / sub_folder / "pytorch_model.bin.index.json", index);
    return folder / sub_folder;
  };
  const auto one = weights("one", "");
  saved(
      {{PythonValue::of_text("a"), PythonValue::of_tensor(0)}, {PythonValue::of_text("b"), PythonValue::of_tensor(1)}},
      one / "pytorch_model.bin");
  const auto two = weights("two", R"({"weight_map": {"a": "1.bin", "b": "2.bin"}})");
  saved({{PythonValue::of_text("a"), PythonValue::of_tensor(0)}}, two / "1.bin");
  saved({{PythonValue::of_text("b"), PythonValue::of_tensor(1)}}, two / "2.bin");
  convert(one, folder / "x.safetensors", quickly());
  convert(two, folder / "y.safetensors", quickly());
  EXPECT_EQ(checks::read(folder / "x.safetensors"), checks::read(folder / "y.safetensors"));
  EXPECT_EQ(open_content(two).kind, "torch files with an index");
  EXPECT_EQ(convert(two / "pytorch_model.bin.index.json", folder / "z.pt", quickly()).tensors, 2u);
  weights("two", R"({"weight_map": {"a": "1.bin", "b": "2.bin", "c": "2.bin"}})");
  expect_error<CheckpointError>("MU205", "'c' is in 2.bin", [&] { open_content(two); });
}

TEST(ConvertTest, DamagedStoragesAreFound) {
  ScratchFolder folder;
  std::string bytes = checks::read(python_file("zip.pt"));
  bytes[bytes.find(std::string("\x00\x00\x80\x3f\x00\x00\x00\x40", 8))] ^= 1;
  checks::write(folder / "x.pt", bytes);
  expect_error<CheckpointError>("MU225", "checksum", [&] { convert(folder / "x.pt", folder / "y.pt"); });
}

TEST(StoredContentTest, ATensorThatIsNotWhereTheIndexSaysIsNamed) {
  ScratchFolder folder;
  convert(python_file("zip.pt"), folder / "shards",
          {.durability = Durability::none, .max_shard_size = 60, .part = "state_dict"});
  const auto path = folder / "shards" / kWeightIndexName;
  const auto index = parse_index(checks::read(path), "index");
  const auto& [name, file] = *index.file_of.begin();
  const auto& other = index.file_of.rbegin()->second;
  ASSERT_NE(file, other);
  for (const auto& [tensor, said] : {std::pair(std::string("absent"), file), std::pair(name, other)}) {
    auto wrong = index;
    wrong.file_of[tensor] = said;
    checks::write(path, to_json(wrong));
    expect_error<CheckpointError>("MU205", "says that tensor '" + tensor + "' is in " + said,
                                  [&] { open_content(folder / "shards"); });
  }
}

TEST(StoredContentTest, LeavesAreSortedAndPlainListsAreOne) {
  const StoredContent stored = open_content(python_file("zip.pt"));
  EXPECT_EQ(stored.kind, "torch file");
  std::vector<std::string> places;
  for (const auto& leaf : leaves_of(stored.content.value)) places.push_back(leaf.path);
  EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
  EXPECT_NE(std::find(places.begin(), places.end(), "optimizer/param_groups/0/params"), places.end());
  EXPECT_NE(std::find(places.begin(), places.end(), "state_dict/row"), places.end());
  EXPECT_EQ(to_text(*stored.content.value.find("tuple"), 60), "(1, (2, \"x\"), ())");
  EXPECT_EQ(open_content(python_file("cpp_module.pt")).kind, "LibTorch archive");
}

}  // namespace
}  // namespace muster::format
