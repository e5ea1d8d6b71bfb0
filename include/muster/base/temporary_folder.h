#pragma once

#include <filesystem>
#include <string_view>

namespace muster {

/// This user's private folder in the folder for temporary files (TMPDIR, or /tmp): `muster-UID`, or `muster-UID-1`,
/// `muster-UID-2`, ... if that name belongs to another user, is a link, or is open to others. It is created with mode
/// 0700 if it is missing, and never removed. All processes of one user on a host get the same folder.
/// Throws: LaunchError (MU069) if the folder does not exist and cannot be created.
std::filesystem::path private_folder();

/// A new private folder of this user in the folder for temporary files. Its name begins with `start` and is
/// unpredictable. The caller removes it. Throws: LaunchError (MU069).
std::filesystem::path new_temporary_folder(std::string_view start);

}  // namespace muster
