#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "datasets.h"

namespace muster::data::testing {

/// 0, 1, ... n-1, and nothing else: without length, position or skipping.
struct Counted {
  int64_t n = 0;
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() { return at < n ? std::optional(at++) : std::nullopt; }
};

/// The same with all that a stream may have; counts what it was asked.
struct Seekable {
  int64_t n = 0;
  int64_t at = 0;
  int64_t reads = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() {
    ++reads;
    return at < n ? std::optional(at++) : std::nullopt;
  }
  int64_t size() const { return n; }
  int64_t skip(int64_t count) {
    const auto skipped = std::min(count, n - at);
    at += skipped;
    return skipped;
  }
  std::string state() const { return std::to_string(at); }
  void load_state(const std::string& saved) { at = std::stoll(saved); }
};

inline const std::vector<nlohmann::json>& stream_cases(const std::string& list) {
  using json = nlohmann::json;
  static const json all = json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/data/stream_cases.json"));
  static std::map<std::string, std::vector<json>> lists;
  auto& found = lists[list];
  if (found.empty()) found = all.at(list).get<std::vector<json>>();
  return found;
}

inline DataLoaderOptions options_of(const nlohmann::json& c) {
  return {.batch_size = c.at("batch_size"), .drop_last = c.at("drop_last"), .split_batches = c.at("split_batches")};
}

}  // namespace muster::data::testing
