#include "checkpoint/numbered_folder.h"

#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "base/log.h"
#include "base/shown.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/storage_calls.h"
#include "format/input_file.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/storage.h"

namespace muster {
namespace checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kNumberedName = "checkpoint_";
constexpr std::string_view kLockedName = "checkpoints";

/// Limit on digits: enough for any number of checkpoints, and within int64_t.
constexpr std::size_t kMostDigits = 18;

std::optional<std::int64_t> number_in(std::string_view name) {
  if (!name.starts_with(kNumberedName)) return std::nullopt;
  const std::string_view digits = name.substr(kNumberedName.size());
  if (digits.empty() || digits.size() > kMostDigits || (digits[0] == '0' && digits.size() > 1)) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0) return std::nullopt;
  return number;
}

/// Why this folder must not be removed; empty for a checkpoint of Muster without foreign files.
std::string reason_to_keep_folder(const fs::path& path) {
  try {
    if (fs::symlink_status(path).type() != fs::file_type::directory) return "it is no folder";
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      const bool ours =
          format::is_checkpoint_file_name(name) && entry.symlink_status().type() == fs::file_type::regular;
      if (!ours) return "it holds " + in_quotes(name) + ", which is none of ours";
    }
    const format::InputFile manifest(path / format::kManifestName);
    format::parse_manifest(manifest.read_text(manifest.size()), manifest.path().string());
    return {};
  } catch (const CheckpointError& error) {
    return "it has no manifest of a checkpoint (" + std::string(error.what()) + ")";
  } catch (const fs::filesystem_error& error) {
    return "it cannot be looked into (" + error.code().message() + ")";
  }
}

/// Why this checkpoint must not be loaded; empty if it is complete. Checks everything except the values.
std::string reason_to_pass_over(const fs::path& path, const std::shared_ptr<CheckpointStorage>& storage) {
  try {
    const Checkpoint checkpoint(path, {.check = CheckpointCheck::as_read, .storage = storage});
    return {};
  } catch (const CheckpointError& error) {
    // A checkpoint of a newer version, or unreachable for now: loading an older one would silently lose training
    // progress.
    if (error.id() == "MU216" || error.id() == "MU314") throw;
    return error.what();
  } catch (const fs::filesystem_error& error) {
    return error.what();
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw CheckpointError("MU202", folder.string() + " cannot be made (" + error.message() + "); nothing was saved");
}

/// The numbers for which a killed writer may have left a lock, a partial checkpoint or a replaced one.
std::set<std::int64_t> left_in(const fs::path& folder) {
  std::set<std::int64_t> numbers;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) continue;
    if (const auto number = number_in(std::string_view(name).substr(1, name.find('.', 1) - 1))) numbers.insert(*number);
  }
  return numbers;
}

void clear_numbered(const fs::path& folder) {
  for (const std::int64_t number : left_in(folder)) try {
      const fs::path path = folder / (std::string(kNumberedName) + std::to_string(number));
      const format::FolderLock lock(path);
      format::clear_left(path);
    } catch (const CheckpointError&) {}  // another writer has that name
}

}  // namespace

std::map<std::int64_t, fs::path> numbered_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored))
    if (const auto number = number_in(entry->path().filename().string())) found.emplace(*number, entry->path());
  return found;
}

std::map<std::int64_t, fs::path> numbered_in_storage(std::string_view id, const std::string& folder,
                                                     CheckpointStorage& storage) {
  std::map<std::int64_t, fs::path> found;
  for (const std::string& name : call_storage(id, "list()", folder, [&] { return storage.list(folder); }))
    if (const auto number = number_in(name)) found.emplace(*number, fs::path(folder) / name);
  return found;
}

fs::path next_numbered(const fs::path& folder, const std::map<std::int64_t, fs::path>& numbered) {
  const std::string name =
      std::string(kNumberedName) + std::to_string(numbered.empty() ? 0 : numbered.rbegin()->first + 1);
  if (!number_in(name))
    throw CheckpointError("MU202", folder.string() + " has no number left above " +
                                       numbered.rbegin()->second.filename().string() + "; nothing was saved");
  return folder / name;
}

std::string reason_to_keep(const fs::path& path, const std::shared_ptr<CheckpointStorage>& storage) {
  try {
    const auto manifest = open_checkpoint_files(path, storage)->open(std::string(format::kManifestName));
    format::parse_manifest(manifest->read_text(manifest->size()), manifest->path().string());
    return {};
  } catch (const CheckpointError& error) {
    if (error.id() == "MU314") throw;
    return "it has no manifest of a checkpoint (" + std::string(error.what()) + ")";
  }
}

void keep_highest(const std::map<std::int64_t, fs::path>& numbered, int count,
                  const std::function<std::string(const fs::path& path)>& reason_to_keep,
                  const std::function<void(const fs::path& path)>& remove) {
  if (count <= 0 || numbered.size() <= static_cast<std::size_t>(count)) return;
  for (auto entry = numbered.rbegin(); entry != numbered.rend(); ++entry) {
    const fs::path& path = entry->second;
    const std::string reason = reason_to_keep(path);
    if (reason.empty() && count-- <= 0) remove(path);
    if (!reason.empty()) log::info(path.string(), " is left as it is, and not counted by total_limit: ", reason);
  }
}

NumberedFolder::NumberedFolder(const fs::path& folder) : folder_(folder) {
  make_folder(folder);
  lock_ = std::make_unique<format::FolderLock>(folder / kLockedName);
  clear_numbered(folder);
}

fs::path NumberedFolder::next() const { return next_numbered(folder_, numbered_in(folder_)); }

void NumberedFolder::keep_highest(int count) const {
  checkpoint::keep_highest(
      numbered_in(folder_), count, [](const fs::path& path) { return reason_to_keep_folder(path); },
      format::remove_folder);
}

}  // namespace checkpoint

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder,
                                                       const std::shared_ptr<CheckpointStorage>& storage) {
  const auto there = storage ? checkpoint::numbered_in_storage("MU314", checkpoint::storage_name(folder), *storage)
                             : checkpoint::numbered_in(folder);
  for (auto entry = there.rbegin(); entry != there.rend(); ++entry) {
    const std::string reason = checkpoint::reason_to_pass_over(entry->second, storage);
    if (reason.empty()) return entry->second;
    log::warning(entry->second.string(), " is passed over, since it is no whole checkpoint: ", reason);
  }
  return std::nullopt;
}

}  // namespace muster
