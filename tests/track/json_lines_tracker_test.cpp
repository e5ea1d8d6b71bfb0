#include <limits>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "run_files.h"
#include "track/file_trackers.h"

namespace muster::track {
namespace {

std::vector<nlohmann::json> objects(const ScratchFolder& folder) {
  std::istringstream lines(read_text(folder / "metrics.jsonl"));
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(lines, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

TEST(JsonLinesTracker, WritesAnObjectPerCall) {
  ScratchFolder folder;
  JsonLinesTracker json(folder);
  const auto png = png_bytes(2, 3);
  const std::vector<double> numbers{1, 2, 4};
  const auto histogram = make_histogram(numbers, 3);
  log_hyperparams_to(json, {{"lr", 0.1}, {"deep", true}, {"net", "a \"b\"\n\xff"}});
  log_to(json, {{"image", PngImage{png}}, {"loss", 0.1}, {"seen", int64_t{1} << 60}, {"weights", histogram}}, 7);
  json.finish(RunStatus::failed);
  const auto found = objects(folder);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0],
            nlohmann::json::parse(R"({"hyperparameters": {"lr": 0.1, "deep": true, "net": "a \"b\"\n\ufffd"}})"));
  EXPECT_EQ(found[1]["step"], 7);
  EXPECT_EQ(found[1]["time"], 1.5);
  EXPECT_EQ(found[1]["loss"], 0.1);
  EXPECT_EQ(found[1]["seen"], int64_t{1} << 60);
  EXPECT_EQ(found[1]["weights"]["counts"], (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(found[1]["weights"]["max"], 4);
  EXPECT_FALSE(found[1].contains("image"));
  EXPECT_EQ(found[2]["status"], "failed");
}

TEST(JsonLinesTracker, NumbersThatJsonLacksAreTexts) {
  ScratchFolder folder;
  JsonLinesTracker json(folder);
  const double infinity = std::numeric_limits<double>::infinity();
  log_to(json, {{"a", infinity}, {"b", -infinity}, {"c", -std::numeric_limits<double>::quiet_NaN()}, {"step", 5}}, 1);
  json.flush();
  const auto found = objects(folder).at(0);
  EXPECT_EQ(found["a"], "Infinity");
  EXPECT_EQ(found["b"], "-Infinity");
  EXPECT_EQ(found["c"], "NaN");
  EXPECT_EQ(found["step"], 5);
}

TEST(JsonLinesTracker, ContinuesAfterTheLastWholeLine) {
  ScratchFolder folder;
  write_text(folder / "metrics.jsonl", "{\"step\":1}\n{\"step\":2,\"lo");
  JsonLinesTracker json(folder);
  log_to(json, {{"loss", 1}}, 2);
  json.flush();
  ASSERT_EQ(objects(folder).size(), 2u);
  EXPECT_EQ(objects(folder)[1]["loss"], 1);
}

}  // namespace
}  // namespace muster::track
