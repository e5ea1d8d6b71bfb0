#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace muster {

class Tracker;

/// A tracker by name, or an object of the program's own.
using TrackerChoice = std::variant<std::string, std::shared_ptr<Tracker>>;

/// How a run is tracked. Its files lie in root/name/version, as Lightning has them.
struct TrackersOptions {
  /// Bytes of values that wait in memory; more wait in a file in the run's folder.
  std::size_t capacity = std::size_t{8} << 20;
  /// "csv", "jsonl", "tensorboard", and objects of classes that derive from Tracker.
  std::vector<TrackerChoice> log_with = {"csv"};
  std::string name = {};
  std::filesystem::path root = "logs";
  /// How long finish(), flush() and the destructor wait for the disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  /// Empty: version_N, with N one more than the highest there is. Otherwise the folder's name; if it exists, its files
  /// are continued.
  std::string version = {};
};

}  // namespace muster
