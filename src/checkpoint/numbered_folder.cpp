#include "checkpoint/numbered_folder.h"

#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/format/input_file.h"
#include "muster/format/manifest.h"

namespace muster {
namespace checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kNumberedName = "checkpoint_";
constexpr std::string_view kLockedName = "checkpoints";

std::optional<std::int64_t> number_in(std::string_view name) {
  if (!name.starts_with(kNumberedName)) return std::nullopt;
  const std::string_view digits = name.substr(kNumberedName.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || number < 0) return std::nullopt;
  return number;
}

/// By the manifest and the sizes of what it names; the files' contents are the loader's business.
bool is_complete(const fs::path& path) {
  try {
    const format::InputFile file(path / format::kManifestName);
    const auto manifest = format::parse_manifest(file.read_text(file.size()), file.path().string());
    for (std::size_t rank = 0; rank < manifest.indexes.size(); ++rank) {
      if (fs::file_size(path / format::rank_index_name(static_cast<int>(rank))) != manifest.indexes[rank].bytes) return false;
      if (!fs::exists(path / format::rank_file_name(static_cast<int>(rank)))) return false;
    }
    return true;
  } catch (const CheckpointError&) {
    return false;
  } catch (const fs::filesystem_error&) {
    return false;
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw CheckpointError("MU202", folder.string() + " cannot be made (" + error.message() + "); nothing was saved");
}

/// The numbers of which a killed writer may have left something: a lock, a part, a former one.
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
    } catch (const CheckpointError&) {}  // somebody writes under just that name: it is theirs
}

}  // namespace

std::map<std::int64_t, fs::path> numbered_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored))
    if (const auto number = number_in(entry->path().filename().string())) found.emplace(*number, entry->path());
  return found;
}

NumberedFolder::NumberedFolder(const fs::path& folder) : folder_(folder) {
  make_folder(folder);
  lock_ = std::make_unique<format::FolderLock>(folder / kLockedName);
  clear_numbered(folder);
}

fs::path NumberedFolder::next() const {
  const auto there = numbered_in(folder_);
  return folder_ / (std::string(kNumberedName) + std::to_string(there.empty() ? 0 : there.rbegin()->first + 1));
}

void NumberedFolder::keep_highest(int count) const {
  auto there = numbered_in(folder_);
  for (; count > 0 && there.size() > static_cast<std::size_t>(count); there.erase(there.begin())) format::remove_folder(there.begin()->second);
}

}  // namespace checkpoint

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder) {
  const auto there = checkpoint::numbered_in(folder);
  for (auto entry = there.rbegin(); entry != there.rend(); ++entry)
    if (checkpoint::is_complete(entry->second)) return entry->second;
  return std::nullopt;
}

}  // namespace muster
