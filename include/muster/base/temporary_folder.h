#pragma once

#include <filesystem>
#include <string_view>

namespace muster {

/// The folder of this user alone in the folder for temporary files (TMPDIR, or /tmp): `muster-UID`, or `muster-UID-1`,
/// `muster-UID-2`, ... where that name is somebody else's, a link, or open to others. It is made with mode 0700 where it is
/// missing, and stays. All processes of a user on a host find the same one.
/// Throws: LaunchError (MU069) if there is none and none can be made.
std::filesystem::path private_folder();

/// A new folder for this user alone in the folder for temporary files. Its name begins with `start`, and nobody can foresee it.
/// Whoever asked for it removes it. Throws: LaunchError (MU069).
std::filesystem::path new_temporary_folder(std::string_view start);

}  // namespace muster
