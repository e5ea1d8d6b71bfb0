#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/yaml.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

std::vector<FileValue> read(const std::string& text) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "file_values_test.yaml";
  std::ofstream(path) << text;
  struct Removed {
    std::filesystem::path path;
    ~Removed() { std::filesystem::remove(path); }
  } removed{path};
  return read_file_values(path.string());
}

std::string refusal_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(FileValues, KeepKeysFormsAndPlacesInTheOrderOfTheFile) {
  const auto values = read("b: 1\na: {c: x, d: [p, 'q,r']}\ne: null\nf: []\ng: {}\nh:\n  - {class_path: X}\n");
  const std::pair<std::string, ValueForm> wanted[] = {
      {"b", ValueForm::plain}, {"a.c", ValueForm::plain}, {"a.d", ValueForm::list}, {"e", ValueForm::none},
      {"f", ValueForm::none},  {"g", ValueForm::none},    {"h", ValueForm::nested}};
  ASSERT_EQ(values.size(), std::size(wanted));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].key, wanted[i].first);
    EXPECT_EQ(values[i].form, wanted[i].second) << values[i].key;
  }
  EXPECT_EQ(values[2].found.text, "p,\"q,r\"");
  EXPECT_TRUE(values[2].found.is_list);
  EXPECT_TRUE(values[0].found.place.ends_with("line 1"));
  EXPECT_EQ(values[6].found.text, "");
}

TEST(FileValues, ReadJsonToo) {
  const auto values = read("{\n  \"num_processes\": 2,\n  \"fsdp_config\": {\"fsdp_version\": 2}\n}\n");
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(values[1].key, "fsdp_config.fsdp_version");
  EXPECT_EQ(values[1].found.text, "2");
}

TEST(FileValues, AFileOfAnotherFormIsRefused) {
  EXPECT_NE(refusal_of("a: 1\na: 2\n").find("MU004"), std::string::npos);
  EXPECT_NE(refusal_of("a: {b: [1\n").find("no YAML"), std::string::npos);
  EXPECT_NE(refusal_of("just words\n").find("holds no keys"), std::string::npos);
  EXPECT_THROW(read_file_values("/nowhere/at/all.yaml"), ConfigError);
}

}  // namespace
}  // namespace muster::options
