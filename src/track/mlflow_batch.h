#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace muster::track {

/// Waiting lines that are sent together: metrics of many lines, or one line of another kind.
struct MlflowBatch {
  std::string artifact = {};
  int64_t end_time = 0;
  nlohmann::json metrics = nlohmann::json::array();
  nlohmann::json params = nlohmann::json::array();
  std::size_t size = 0;     ///< size of its lines in bytes
  std::string status = {};  ///< final status of the run
  int unreadable = 0;       ///< number of lines that this tracker did not write
};

/// The first batch of these whole lines.
MlflowBatch first_batch(std::string_view lines);

}  // namespace muster::track
