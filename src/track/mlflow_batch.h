#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace muster::track {

/// Waiting lines that are sent at once: metrics of many lines, or one line of another kind.
struct MlflowBatch {
  std::string artifact = {};
  int64_t end_time = 0;
  nlohmann::json metrics = nlohmann::json::array();
  nlohmann::json params = nlohmann::json::array();
  std::size_t size = 0;     ///< bytes of its lines
  std::string status = {};  ///< of the end of the run
  int unreadable = 0;       ///< lines that are none of ours
};

/// The first batch of these whole lines.
MlflowBatch first_batch(std::string_view lines);

}  // namespace muster::track
