#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muster::comm {

/// The variable with the folders in which objects are looked for first.
inline constexpr const char* kObjectFolders = "MUSTER_BACKEND_PATH";

/// The folder of the file that holds this very function: libmuster.so, or the program.
std::filesystem::path own_folder();

/// A shared object with a backend that Muster was not linked with.
struct ObjectFile {
  void* handle = nullptr;                ///< null: there is none, or it cannot be opened
  std::string path{};                    ///< the last place that was looked at
  std::vector<std::string> looked_at{};  ///< all of them
  std::string problem{};                 ///< why what is at `path` cannot be opened; empty: nothing is there
};

/// Opens libmuster_NAME.so; a name with a slash is a path. It is looked for in the folders of MUSTER_BACKEND_PATH, in
/// lib beside the folder of the program or of libmuster.so, in that folder itself, and in the dynamic linker's. What
/// was opened stays open.
ObjectFile open_object(const std::string& name);

}  // namespace muster::comm
