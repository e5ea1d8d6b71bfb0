#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muster::comm {

/// The variable that lists the folders in which objects are looked for first.
inline constexpr const char* kObjectFolders = "MUSTER_BACKEND_PATH";

/// The folder of the file that contains this function: libmuster.so or the program.
std::filesystem::path own_folder();

/// A shared object with a backend that Muster was not linked with.
struct ObjectFile {
  void* handle = nullptr;                ///< handle of dlopen(); null: there is no such object, or it cannot be opened
  std::string path{};                    ///< the last path that was tried
  std::vector<std::string> looked_at{};  ///< every path that was tried
  std::string problem{};                 ///< why the file at `path` cannot be opened; empty: there is no file
};

/// Opens libmuster_NAME.so; a name with a slash is a path. It is looked for in the folders of MUSTER_BACKEND_PATH, in
/// lib next to the folder of the program or of libmuster.so, in that folder itself, and in the dynamic linker's. An
/// object that was opened stays open.
ObjectFile open_object(const std::string& name);

}  // namespace muster::comm
