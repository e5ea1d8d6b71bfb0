#include "format/weight_set.h"

#include <sys/stat.h>

#include <regex>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "format/atomic_folder.h"
#include "format/input_file.h"
#include "format/json.h"
#include "format/python_file.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;
constexpr std::uint64_t kMaxIndexBytes = 1'000'000'000;  // limit on an index in bytes
constexpr auto kOtherWriter = std::chrono::minutes(1);   // longest wait for another writer

[[noreturn]] void refuse_index(std::string_view file, const std::string& reason) {
  throw CheckpointError("MU205", std::string(file) + ": " + reason);
}

std::string file_name(const Json& value, const std::string& tensor, std::string_view file) {
  const auto* name = value.get<std::string>();
  if (!name) refuse_index(file, "the file of tensor " + in_quotes(tensor) + " is not a string");
  const bool plain = !name->empty() && *name != "." && *name != ".." && name->find('/') == std::string::npos &&
                     shown(*name, name->size()) == *name;
  if (!plain)
    refuse_index(file, "the file of tensor " + in_quotes(tensor) + " must be a name in the index's own folder, not " +
                           in_quotes(*name));
  return *name;
}

/// Inodes are reused at once; the time of the last change distinguishes two files of one inode.
std::string stamp_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return std::to_string(status.st_ino) + "/" + std::to_string(status.st_ctim.tv_sec) + "." +
         std::to_string(status.st_ctim.tv_nsec);
}

WeightSet read_index(const fs::path& path) {
  WeightSet set;
  set.index_path = path;
  set.index_stamp = stamp_of(path);
  set.index = parse_index(InputFile(path).read_text(kMaxIndexBytes), path.string());
  Names names;
  for (const auto& [tensor, file] : set.index->file_of) names.insert(file);
  for (const std::string& name : names) set.files.push_back(path.parent_path() / name);
  return set;
}

/// The current index if it can be read: a broken one names nothing worth keeping.
std::optional<WeightIndex> former_index(const fs::path& folder) {
  try {
    return read_index(folder / kWeightIndexName).index;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

void write_index(const fs::path& folder, const WeightIndex& index, Durability durability) {
  AtomicFile file(folder / kWeightIndexName, durability);
  const std::string text = to_json(index);
  file.write(std::array{std::string_view(text)});
  file.publish();
}

std::string second_name(const fs::path& folder, const std::string& name) {
  const std::string stem = name.substr(0, name.rfind('.'));
  for (int i = 0;; ++i) {
    const std::string candidate = stem + ".former" + (i ? std::to_string(i) : "") + ".safetensors";
    if (!fs::exists(folder / candidate)) return candidate;
  }
}

/// Gives the files that are about to be replaced second names, and the current index those names.
void set_former_aside(const fs::path& folder, const Names& replaced, Durability durability) {
  auto index = former_index(folder);
  if (!index) return;
  std::map<std::string, std::string> renamed;
  for (const auto& [tensor, file] : index->file_of)
    if (replaced.contains(file) && !renamed.contains(file)) renamed[file] = second_name(folder, file);
  if (renamed.empty()) return;
  std::error_code refused;
  for (const auto& [name, second] : renamed)
    if (!refused) fs::create_hard_link(folder / name, folder / second, refused);
  if (refused) {
    fs::remove(folder / kWeightIndexName, refused);
    return;
  }
  for (auto& [tensor, file] : index->file_of)
    if (const auto found = renamed.find(file); found != renamed.end()) file = found->second;
  write_index(folder, *index, durability);
}

/// Removes weight files that the new set does not use. Files that cannot be removed stay: the set is complete without
/// that.
void remove_former(const fs::path& folder, const Names& used, bool has_index) {
  std::error_code ignored;
  if (!has_index) fs::remove(folder / kWeightIndexName, ignored);
  for (const fs::path& path : paths_in(folder)) {
    const std::string name = path.filename().string();
    if (is_weight_file_name(name) && !used.contains(name)) fs::remove(path, ignored);
  }
}

/// What the caller may have meant by a folder that has no weights under the standard names.
std::string other_weights(const fs::path& folder) {
  Names names;
  for (const fs::path& path : paths_in(folder))
    for (const char* ending : {".safetensors", ".bin", ".pt", ".pth", ".ckpt"})
      if (path.extension() == ending) names.insert(path.filename().string());
  return names.empty()
             ? ": nothing was saved there, or a save was cut off"
             : "; name one of what is there: " + listed(names, [](const std::string& name) { return shown(name); });
}

[[noreturn]] void refuse_index(const WeightSet& set, const std::string& why) {
  throw CheckpointError("MU205", set.index_path.string() + ": it " + why + "; the files belong to different saves");
}

}  // namespace

std::vector<std::vector<std::size_t>> split_into_shards(std::span<const std::uint64_t> tensor_bytes,
                                                        std::uint64_t limit_bytes) {
  std::vector<std::vector<std::size_t>> shards;
  std::vector<std::size_t> current;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (tensor_bytes[i] > limit_bytes) {
      shards.push_back({i});
      continue;
    }
    if (tensor_bytes[i] > limit_bytes - filled) {
      shards.push_back(std::exchange(current, {}));
      filled = 0;
    }
    current.push_back(i);
    filled += tensor_bytes[i];
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return std::string(kWeightsName);
  return formatted("model-{:05d}-of-{:05d}.safetensors", index + 1, count);
}

bool is_weight_file_name(std::string_view name) {
  static const std::regex pattern(R"(model(-\d{5,}-of-\d{5,}(\.former\d*)?)?\.safetensors)");
  return std::regex_match(name.begin(), name.end(), pattern);
}

std::string to_json(const WeightIndex& index) {
  const nlohmann::json text = {{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", index.file_of}};
  return text.dump(2) + "\n";
}

WeightIndex parse_index(std::string_view text, std::string_view file) {
  const Json parsed = parse_json(text, file, "MU205");
  const Json* map = parsed.find("weight_map");
  const auto* entries = map ? map->get<Json::Map>() : nullptr;
  if (!entries) refuse_index(file, "it has no table named weight_map");
  WeightIndex index;
  for (const auto& [tensor, value] : *entries) index.file_of[tensor] = file_name(value, tensor, file);
  const Json* metadata = parsed.find("metadata");
  const Json* total = metadata ? metadata->find("total_size") : nullptr;
  const auto* bytes = total ? total->get<std::int64_t>() : nullptr;
  if (bytes && *bytes > 0) index.total_bytes = static_cast<std::uint64_t>(*bytes);
  return index;
}

WeightSet find_weight_set(const fs::path& path) {
  if (path.extension() == ".json") return read_index(path);
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {.files = {path}, .index = {}, .index_path = {}};
  for (const auto& [one, index] :
       {std::pair(kWeightsName, kWeightIndexName), std::pair(kTorchWeightsName, kTorchWeightIndexName)}) {
    if (fs::exists(path / one, ignored)) return {.files = {path / one}, .index = {}, .index_path = {}};
    if (fs::exists(path / index, ignored)) return read_index(path / index);
  }
  throw CheckpointError("MU200", path.string() + " has neither " + std::string(kWeightsName) + " nor " +
                                     std::string(kTorchWeightsName) + " nor an index of several such files" +
                                     other_weights(path));
}

bool is_of_python(const WeightSet& set) { return !set.files.empty() && is_python_file(InputFile(set.files.front())); }

void require_listed(const WeightSet& set, const std::function<bool(const std::string& name)>& holds) {
  if (!set.index) return;
  for (const auto& [name, file] : set.index->file_of)
    if (!holds(name))
      refuse_index(set, "says that tensor " + in_quotes(name) + " is in " + file + ", which has none of that name");
}

void require_indexed(const WeightSet& set, const std::map<std::string, std::string>& file_of) {
  if (!set.index) return;
  require_listed(set, [&](const std::string& name) {
    const auto found = file_of.find(name);
    return found != file_of.end() && found->second == set.index->file_of.at(name);
  });
  for (const auto& [name, file] : file_of)
    if (!set.index->file_of.contains(name))
      refuse_index(set, "does not know tensor " + in_quotes(name) + " of " + file);
}

void open_weight_set(const fs::path& path, const std::function<void(const WeightSet&)>& open) {
  for (int attempt = 1; attempt <= 20; ++attempt) {
    const WeightSet set = find_weight_set(path);
    // The index is replaced before the first of the files that it names.
    const auto is_in_force = [&] {
      if (set.index) return stamp_of(set.index_path) == set.index_stamp;
      return set.files.front() == path || fs::exists(set.files.front());
    };
    try {
      open(set);
      if (!set.index || is_in_force()) return;
    } catch (const CheckpointError&) {
      if (is_in_force()) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(attempt));
  }
  throw CheckpointError("MU205",
                        path.string() + " was replaced each time it was read; read it when nobody saves there");
}

void publish_weight_set(const fs::path& folder, std::span<const std::unique_ptr<AtomicFile>> files,
                        const std::optional<WeightIndex>& index, Durability durability) {
  Names names;
  for (const auto& file : files) names.insert(file->path().filename().string());
  for (const auto& file : files) file->finish();
  const FolderLock lock(folder / "weights", kOtherWriter);
  if (index) set_former_aside(folder, names, durability);
  for (const auto& file : files) file->publish();
  if (index) write_index(folder, *index, durability);
  remove_former(folder, names, index.has_value());
}

std::unique_ptr<AtomicFile> write_weight_file(const fs::path& path, std::span<const TensorSpec> tensors,
                                              const Metadata& metadata, Durability durability,
                                              const WriteValues& write_values) {
  const FilePlan plan = plan_file(tensors, metadata, path.string());
  auto file = std::make_unique<AtomicFile>(path, durability);
  file->reserve(plan.file_bytes);
  file->write(std::array{std::string_view(plan.head)});
  write_values(*file, plan.order);
  return file;
}

std::vector<fs::path> write_weight_set(const fs::path& folder, std::span<const TensorSpec> tensors,
                                       const Metadata& metadata, const Metadata& tied, std::uint64_t limit_bytes,
                                       Durability durability, const WriteValues& write_values) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    throw CheckpointError("MU202", folder.string() + " is not a folder and cannot be made one (" +
                                       (error ? error.message() : "a file has that name") + ")");
  WeightIndex index;
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& tensor : tensors) {
    sizes.push_back(byte_count(tensor.type, tensor.shape).value_or(0));  // plan_file() refuses one without a size
    index.total_bytes += sizes.back();
  }
  const auto shards = split_into_shards(sizes, limit_bytes);
  std::vector<std::unique_ptr<AtomicFile>> files;
  std::vector<fs::path> paths;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    std::vector<TensorSpec> inside;
    for (const std::size_t tensor : shards[i]) index.file_of[inside.emplace_back(tensors[tensor]).name] = name;
    Metadata here = metadata;
    for (const auto& [dropped, kept] : tied)
      if (const auto found = index.file_of.find(kept); found != index.file_of.end() && found->second == name)
        here.emplace(dropped, kept);
    const auto write_some = [&](AtomicFile& file, std::span<const std::size_t> order) {
      std::vector<std::size_t> numbers;
      for (const std::size_t place : order) numbers.push_back(shards[i][place]);
      write_values(file, numbers);
    };
    paths.push_back(folder / name);
    files.push_back(write_weight_file(paths.back(), inside, here, durability, write_some));
  }
  publish_weight_set(folder, files, shards.size() > 1 ? std::optional(index) : std::nullopt, durability);
  return paths;
}

}  // namespace muster::format
