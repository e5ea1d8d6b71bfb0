#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

namespace muster::checkpoint {

/// The name in a storage of a checkpoint or of a folder of checkpoints: "a/b" for "./a/b/"; "" for ".".
/// Throws: CheckpointError MU317 for a path above the storage.
std::string storage_name(const std::filesystem::path& path);

/// Throws: CheckpointError MU313 for a function of saving, MU314 for one of loading. The message has the function, the
/// checkpoint or file, and the exception that is being handled.
[[noreturn]] void refuse_storage(std::string_view id, std::string_view function, const std::string& place,
                                 const char* what);

/// Calls a function of a custom storage. Throws: as refuse_storage(), for any exception.
template <class Call>
auto call_storage(std::string_view id, std::string_view function, const std::string& place, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    refuse_storage(id, function, place, error.what());
  } catch (...) {
    refuse_storage(id, function, place, "something that is not derived from std::exception");
  }
}

}  // namespace muster::checkpoint
