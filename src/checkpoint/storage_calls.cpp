#include "checkpoint/storage_calls.h"

#include "base/shown.h"
#include "muster/base/error.h"

namespace muster::checkpoint {

std::string storage_name(const std::filesystem::path& path) {
  std::filesystem::path normal = path.lexically_normal();
  if (!normal.empty() && !normal.has_filename()) normal = normal.parent_path();
  if (normal == ".") normal.clear();
  if (!normal.empty() && *normal.begin() == "..")
    throw CheckpointError("MU317", in_quotes(path.string()) +
                                       " leads above the program's storage of checkpoints; give a "
                                       "name without \"..\", or another project.directory");
  return normal.generic_string();
}

void refuse_storage(std::string_view id, std::string_view function, const std::string& place, const char* what) {
  const std::string failed = "the program's storage of checkpoints failed in " + std::string(function) + " of " +
                             in_quotes(place) + ": " + what;
  if (id == "MU313")
    throw CheckpointError("MU313", failed + "; the checkpoint was not saved. See to the storage, and save again");
  throw CheckpointError("MU314", failed + "; nothing was loaded. See to the storage, and load again");
}

}  // namespace muster::checkpoint
