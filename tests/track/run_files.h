#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/temporary_folder.h"
#include "muster/track/trackers.h"

namespace muster::track {

/// A folder that goes with the test.
class ScratchFolder {
 public:
  ScratchFolder() : path_(new_temporary_folder("muster-track-")) {}
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }
  operator const std::filesystem::path&() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

/// The beginning of a PNG file, which is all that trackers read.
inline std::vector<uint8_t> png_bytes(uint8_t width, uint8_t height) {
  return {0x89, 'P', 'N', 'G', '\r',  '\n', 0x1a, '\n', 0,      0, 0, 13, 'I', 'H', 'D',
          'R',  0,   0,   0,   width, 0,    0,    0,    height, 8, 2, 0,  0,   0};
}

inline void log_to(Tracker& tracker, std::initializer_list<LoggedValue> values, int64_t step) {
  tracker.log({.step = step, .time = 1.5, .values = {values.begin(), values.size()}});
}

inline void log_hyperparams_to(Tracker& tracker, std::initializer_list<LoggedValue> values) {
  tracker.log_hyperparams({values.begin(), values.size()});
}

}  // namespace muster::track
