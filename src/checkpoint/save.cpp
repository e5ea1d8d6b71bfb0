#include <array>
#include <memory>
#include <optional>
#include <system_error>

#include <ATen/core/Tensor.h>

#include "base/shown.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/element_types.h"
#include "checkpoint/tied_tensors.h"
#include "format/atomic_file.h"
#include "format/safetensors.h"
#include "format/weight_set.h"
#include "muster/base/error.h"
#include "muster/checkpoint/weights.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using checkpoint::dense;
using checkpoint::spec_of;

/// Writes tensors to a file in a few large calls, and keeps copies only until they are written.
class TensorStream {
 public:
  TensorStream(format::AtomicFile& file, const ValueOf& value_of) : file_(file), value_of_(value_of) {}

  void append(std::string_view bytes) {
    pieces_.push_back(bytes);
    waiting_ += bytes.size();
    if (waiting_ >= kBytesPerCall || pieces_.size() >= kPiecesPerCall) flush();
  }

  void append(const at::Tensor& tensor) {
    const at::Tensor given = value_of_ ? value_of_(tensor) : tensor;
    if (!ring_ && checkpoint::is_on_device(given)) {
      flush();
      ring_.emplace(given.device(), [this](std::string_view bytes) { file_.write(std::array{bytes}); });
    }
    if (ring_) return ring_->append(given);
    owners_.push_back(dense(given));
    const at::Tensor& values = owners_.back();
    append({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }

  void flush() {
    if (ring_) return ring_->finish();
    file_.write(pieces_);
    pieces_.clear();
    owners_.clear();
    waiting_ = 0;
  }

 private:
  static constexpr std::size_t kBytesPerCall = std::size_t{8} << 20;  // bytes after which pieces are written
  static constexpr std::size_t kPiecesPerCall = 1024;                 // number of pieces after which they are written

  format::AtomicFile& file_;
  std::optional<checkpoint::PinnedRing> ring_;  // created for the first tensor on a device
  const ValueOf& value_of_;
  std::vector<at::Tensor> owners_;
  std::vector<std::string_view> pieces_;
  std::size_t waiting_ = 0;
};

std::unique_ptr<format::AtomicFile> write_aside(const NamedTensors& tensors, const fs::path& path,
                                                const format::Metadata& metadata, Durability durability,
                                                const ValueOf& value_of) {
  std::vector<format::TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) specs.push_back(spec_of(name, tensor, path.string()));
  const format::FilePlan plan = format::plan_file(specs, metadata, path.string());
  auto file = std::make_unique<format::AtomicFile>(path, durability);
  file->reserve(plan.file_bytes);
  TensorStream stream(*file, value_of);
  stream.append(plan.head);
  for (const std::size_t i : plan.order) stream.append(tensors[i].second);
  stream.flush();
  return file;
}

void check_names(const NamedTensors& tensors, const fs::path& path) {
  std::map<std::string_view, int> seen;
  for (const auto& [name, tensor] : tensors)
    if (seen[name]++ > 0)
      throw CheckpointError("MU203", path.string() + " was not written: two tensors are named " + in_quotes(name));
}

std::vector<NamedTensors> split(const NamedTensors& tensors, std::uint64_t limit_bytes, format::WeightIndex& index,
                                const fs::path& folder) {
  std::vector<std::uint64_t> sizes;
  for (const auto& [name, tensor] : tensors) {
    spec_of(name, tensor, folder.string());
    sizes.push_back(static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size());
    index.total_bytes += sizes.back();
  }
  const auto shards = format::split_into_shards(sizes, limit_bytes);
  std::vector<NamedTensors> result(shards.size());
  for (std::size_t shard = 0; shard < shards.size(); ++shard)
    for (const std::size_t i : shards[shard]) {
      result[shard].push_back(tensors[i]);
      index.file_of[tensors[i].first] = format::shard_name(shard, shards.size());
    }
  return result;
}

void make_target_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    throw CheckpointError("MU202", folder.string() + " is not a folder and cannot be made one (" +
                                       (error ? error.message() : "a file has that name") + ")");
}

}  // namespace

void save_file(const NamedTensors& tensors, const fs::path& path, const SaveFileOptions& options) {
  check_names(tensors, path);
  const checkpoint::UntiedTensors untied = checkpoint::drop_tied(tensors);
  format::Metadata metadata = options.metadata;
  metadata.insert(untied.kept_name_of.begin(), untied.kept_name_of.end());
  write_aside(untied.tensors, path, metadata, options.durability, {})->publish();
}

std::vector<fs::path> save_weights(const NamedTensors& tensors, const fs::path& folder,
                                   const SaveWeightsOptions& options) {
  return save_weights(tensors, folder, options, {});
}

std::vector<fs::path> save_weights(const NamedTensors& tensors, const fs::path& folder,
                                   const SaveWeightsOptions& options, const ValueOf& value_of) {
  make_target_folder(folder);
  check_names(tensors, folder);
  const checkpoint::UntiedTensors untied = checkpoint::drop_tied(tensors);
  format::WeightIndex index;
  const auto shards = split(untied.tensors, options.max_shard_size.bytes(), index, folder);
  std::vector<format::Metadata> metadata(shards.size(), options.metadata);
  for (const auto& [dropped, kept] : untied.kept_name_of)
    for (std::size_t i = 0; i < shards.size(); ++i)
      if (index.file_of[kept] == format::shard_name(i, shards.size())) metadata[i].emplace(dropped, kept);
  std::vector<std::unique_ptr<format::AtomicFile>> files;
  std::vector<fs::path> paths;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    paths.push_back(folder / format::shard_name(i, shards.size()));
    files.push_back(write_aside(shards[i], paths.back(), metadata[i], options.durability, value_of));
  }
  format::publish_weight_set(folder, files, shards.size() > 1 ? std::optional(index) : std::nullopt,
                             options.durability);
  return paths;
}

}  // namespace muster
