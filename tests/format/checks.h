#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::checks {

/// A folder of its own for one test, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::path(MUSTER_BINARY_DIR) / "scratch-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no scratch folder at " + pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// How many entries a folder has.
inline std::size_t entries(const std::filesystem::path& folder) {
  const auto all = std::filesystem::directory_iterator(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// The bytes of a file with this JSON as its header, unpadded, and this data.
inline std::string file_of(std::string_view json, std::string_view data = {}) {
  const std::uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(json).append(data);
}

/// Expects that `action` throws Kind with this id and these words in its message.
template <class Kind, class Action>
void expect_error(std::string_view id, std::string_view words, Action&& action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; wanted " << id << " with \"" << words << '"';
  } catch (const Kind& error) {
    EXPECT_EQ(error.id(), id);
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos)
        << "wanted \"" << words << "\" in: " << error.what();
  }
}

}  // namespace muster::checks
