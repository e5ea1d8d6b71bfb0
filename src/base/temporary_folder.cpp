#include "muster/base/temporary_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int kNames = 100;           // attempts to find a free name
constexpr std::size_t kLetters = 12;  // length of the random part of a name

fs::path temporary_folder() {
  std::error_code missing;
  const fs::path folder = fs::temp_directory_path(missing);
  if (!missing) return folder;
  const char* variable = std::getenv("TMPDIR");
  throw LaunchError(
      "MU069",
      formatted(
          "the folder for temporary files, {}, cannot be used: {}. Set TMPDIR to a folder that this user may write to",
          variable ? variable : "/tmp", missing.message()));
}

/// False for a symbolic link: lstat() does not follow it.
bool is_ours_alone(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 077) == 0;
}

[[noreturn]] void refuse(const fs::path& path, int error) {
  throw LaunchError("MU069",
                    formatted("the folder {} cannot be made: {}. Set TMPDIR to a folder that this user may write to",
                              path.string(), std::generic_category().message(error)));
}

}  // namespace

fs::path private_folder() {
  const fs::path above = temporary_folder();
  const std::string name = formatted("muster-{}", ::geteuid());
  for (int number = 0; number < kNames; ++number) {
    const fs::path path = above / (number == 0 ? name : formatted("{}-{}", name, number));
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) refuse(path, errno);
    if (is_ours_alone(path)) return path;
  }
  throw LaunchError(
      "MU069",
      formatted("in {} the names {} to {}-{} all belong to others or are open to them. Remove them, or set TMPDIR to "
                "a folder of your own",
                above.string(), name, name, kNames - 1));
}

fs::path new_temporary_folder(std::string_view start) {
  const fs::path above = temporary_folder();
  for (;;) {
    const fs::path path = above / formatted("{}-{}", start, random_word(kLetters));
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) refuse(path, errno);
  }
}

}  // namespace muster
