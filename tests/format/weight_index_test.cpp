#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checks.h"
#include "format/weight_set.h"

namespace muster::format {
namespace {

using checks::expect_error;

TEST(WeightIndex, SplitsAsTheRecordedCases) {
  const auto cases = nlohmann::json::parse(checks::read(MUSTER_SOURCE_DIR "/tests/checkpoint/shard_split_cases.json"));
  ASSERT_GE(cases.size(), 3u);
  for (const auto& one : cases) {
    const auto sizes = one["sizes_bytes"].get<std::vector<std::uint64_t>>();
    const auto shards = split_into_shards(sizes, one["max_shard_size"].get<std::uint64_t>());
    ASSERT_EQ(shards.size(), one["shards"].size()) << one;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      EXPECT_EQ(shard_name(i, shards.size()), one["shards"][i]["file"].get<std::string>()) << one;
      EXPECT_EQ(shards[i], one["shards"][i]["tensors"].get<std::vector<std::size_t>>()) << one;
      for (const std::size_t tensor : shards[i]) total += sizes[tensor];
    }
    EXPECT_EQ(total, one["total_size"].get<std::uint64_t>()) << one;
  }
}

TEST(WeightIndex, SplitsEdges) {
  using Shards = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(split_into_shards({}, 10), Shards{{}});
  EXPECT_EQ(split_into_shards(std::vector<std::uint64_t>{10, 10}, 10), (Shards{{0}, {1}}));
  EXPECT_EQ(split_into_shards(std::vector<std::uint64_t>{1, 0}, 0), (Shards{{0}, {1}}));
  EXPECT_EQ(
      split_into_shards(std::vector<std::uint64_t>{std::uint64_t{1} << 63, std::uint64_t{1} << 63}, ~std::uint64_t{0}),
      (Shards{{0}, {1}}));
}

TEST(WeightIndex, KnowsItsFileNames) {
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_name(1, 12), "model-00002-of-00012.safetensors");
  for (const char* name : {"model.safetensors", "model-00002-of-00012.safetensors",
                           "model-00001-of-00002.former.safetensors", "model-00001-of-00002.former7.safetensors"})
    EXPECT_TRUE(is_weight_file_name(name)) << name;
  for (const char* name : {"my-model.safetensors", "model.safetensors.index.json", "model-1-of-2.safetensors",
                           "model.safetensors.bak", "model-ema.safetensors"})
    EXPECT_FALSE(is_weight_file_name(name)) << name;
}

TEST(WeightIndex, GoesToTextAndBack) {
  const WeightIndex index{.file_of = {{"b", "two"}, {"a", "one"}}, .total_bytes = 20};
  const std::string text = to_json(index);
  EXPECT_EQ(text,
            "{\n  \"metadata\": {\n    \"total_size\": 20\n  },\n  \"weight_map\": {\n    \"a\": \"one\",\n    \"b\": "
            "\"two\"\n  }\n}\n");
  EXPECT_EQ(parse_index(text, "index").file_of, index.file_of);
  EXPECT_EQ(parse_index(text, "index").total_bytes, 20u);
}

TEST(WeightIndex, ReadsTheIndexOfOthers) {
  EXPECT_EQ(parse_index(R"({"metadata":{"total_size":1.5,"more":[[1]]},"weight_map":{"a":"f"},"extra":null})", "index")
                .file_of.at("a"),
            "f");
  EXPECT_EQ(parse_index(R"({"weight_map":{}})", "index").total_bytes, 0u);
}

TEST(WeightIndex, RefusesHostileText) {
  const auto refuses = [](std::string_view words, const std::string& text) {
    expect_error<CheckpointError>("MU205", words, [&] { parse_index(text, "index"); });
  };
  refuses("not JSON", "");
  refuses("not JSON", "{\"weight_map\":{\"a\":\"\xff\"}}");
  refuses("has a zero byte", std::string("{\"weight_map\":{}}\0hidden", 24));
  refuses("no table named weight_map", "[]");
  refuses("no table named weight_map", R"({"weight_map":[]})");
  refuses("the file of tensor 'a' is not a string", R"({"weight_map":{"a":1}})");
  refuses("the name 'a' comes twice", R"({"weight_map":{"a":"x","a":"y"}})");
  refuses("the name 'weight_map' comes twice", R"({"weight_map":{},"weight_map":{}})");
  for (const char* name : {"../x", "/etc/passwd", "..", ".", "", "a/b", "a\\u0000b"})
    refuses("must be a name in the index's own folder", R"({"weight_map":{"a":")" + std::string(name) + "\"}}");
  refuses("nested too deeply", std::string(1'000'000, '['));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  refuses("nested too deeply", objects);
}

}  // namespace
}  // namespace muster::format
