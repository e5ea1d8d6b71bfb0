#pragma once  // for other rooms

#include <string>
#include <vector>

namespace muster::comm {

/// The variable that lists the folders in which objects are looked for first.
inline constexpr const char* kObjectFolders = "MUSTER_BACKEND_PATH";

/// A shared object with communication that Muster was not linked with.
struct ObjectFile {
  void* handle = nullptr;                ///< handle of dlopen(); null: there is no such object, or it cannot be opened
  std::string path{};                    ///< the last path that was tried
  std::vector<std::string> looked_at{};  ///< every path that was tried
  bool is_refused = false;               ///< there is a file at `path`, which cannot be opened
  std::string problem{};                 ///< what the dynamic linker says about `path`; empty if it was opened
};

/// Opens libmuster_NAME.so; a name with a slash is a path. It is looked for in the folders of MUSTER_BACKEND_PATH, in
/// lib next to the folder of the program or of libmuster.so, in that folder itself, and in the dynamic linker's. An
/// object that was opened stays open.
ObjectFile open_object(const std::string& name);

/// Opens the object that belongs to this build of Muster: next to the program or libmuster.so, or in the dynamic
/// linker's folders. It stays open, and all objects that are opened later see its symbols.
ObjectFile open_own_object(const char* file);

/// The path of libmuster_NAME.so in the folders of open_object(), except the dynamic linker's. Empty if there is none.
/// Opens nothing.
std::string place_of_object(const std::string& name);

/// What an object's definition says that it was built with is compared with this program, because a program and an
/// object of other versions would crash. Returns what differs; empty: nothing.
std::string difference_of_builds(const char* built_with);

}  // namespace muster::comm
