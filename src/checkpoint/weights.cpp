#include "muster/checkpoint/weights.h"

#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/text.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/weight_source.h"
#include "format/atomic_file.h"
#include "format/safetensors.h"
#include "format/weight_set.h"
#include "muster/base/error.h"

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

namespace {

using checkpoint::StoredTensor;
using checkpoint::Transfer;
using checkpoint::WeightSource;

/// Destinations of the stored tensors, determined before anything is written.
struct Matches {
  std::vector<std::string> different;
  IncompatibleKeys report;
  std::vector<std::pair<const StoredTensor*, at::Tensor>> pairs;
};

const StoredTensor* find_source(const WeightSource& source, const std::string& name) {
  if (const auto found = source.tensors.find(name); found != source.tensors.end()) return &found->second;
  const auto kept_name = source.metadata.find(name);
  if (kept_name == source.metadata.end()) return nullptr;
  const auto found = source.tensors.find(kept_name->second);
  return found == source.tensors.end() ? nullptr : &found->second;
}

bool is_filled_through_another(const at::Tensor& destination, const Matches& matches) {
  return std::any_of(matches.pairs.begin(), matches.pairs.end(),
                     [&](const auto& pair) { return checkpoint::are_tied(pair.second, destination); });
}

Matches match(const NamedTensors& destinations, const WeightSource& source) {
  Matches matches;
  std::set<std::string> used;
  std::vector<std::pair<std::string, at::Tensor>> unmatched;
  for (const auto& [name, destination] : destinations) {
    const StoredTensor* stored = destination.defined() ? find_source(source, name) : nullptr;
    if (!stored) {
      unmatched.emplace_back(name, destination);
      continue;
    }
    used.insert(stored->entry.name);
    if (stored->type != destination.scalar_type() || destination.sizes() != at::IntArrayRef(stored->shape))
      matches.different.push_back(in_quotes(name) + " (file: " + std::string(name_of(stored->entry.type)) + " " +
                                  c10::str(at::IntArrayRef(stored->shape)) +
                                  ", here: " + checkpoint::description(destination) + ")");
    else matches.pairs.emplace_back(stored, destination);
  }
  for (const auto& [name, destination] : unmatched)
    if (!is_filled_through_another(destination, matches)) matches.report.missing_keys.push_back(name);
  for (const auto& [name, stored] : source.tensors)
    if (!used.contains(name)) matches.report.unexpected_keys.push_back(name);
  return matches;
}

void fill_by_copy(const std::vector<std::pair<const StoredTensor*, at::Tensor>>& pairs) {
  const at::NoGradGuard no_grad;
  checkpoint::DeviceFiller filler;
  for (const auto& [stored, destination] : pairs) {
    if (checkpoint::is_on_device(destination)) {
      filler(destination, [from = stored](char* to, std::size_t offset, std::size_t bytes) {
        checkpoint::read_all({Transfer{from->file, from->entry.offset + offset, to, bytes}});
      });
      continue;
    }
    at::Tensor values = at::empty(stored->shape, at::TensorOptions().dtype(stored->type));
    checkpoint::read_all({checkpoint::whole(*stored, values.mutable_data_ptr())});
    at::Tensor target = checkpoint::as_bytes_if_packed(destination.detach());
    target.copy_(checkpoint::as_bytes_if_packed(values));
  }
}

void fill(const Matches& matches) {
  std::vector<std::pair<const StoredTensor*, at::Tensor>> by_copy;
  std::vector<Transfer> direct;
  std::set<const void*> taken;
  for (const auto& [stored, destination] : matches.pairs) {
    if (destination.numel() == 0) continue;
    if (!checkpoint::is_plain(destination)) {
      by_copy.emplace_back(stored, destination);
      continue;
    }
    // Tied destinations are filled once: two threads must not write the same memory.
    if (taken.insert(destination.const_data_ptr()).second)
      direct.push_back(checkpoint::whole(*stored, destination.mutable_data_ptr()));
    // The bytes are written behind autograd's back, and a graph that saved the tensor must detect the change. Inference
    // tensors have no version.
    if (!destination.is_inference()) destination.unsafeGetTensorImpl()->bump_version();
  }
  checkpoint::read_all(direct);
  fill_by_copy(by_copy);
}

}  // namespace

const at::Tensor& LoadedWeights::at(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const auto& entry, const std::string& wanted) { return entry.first < wanted; });
  if (found != tensors.end() && found->first == name) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors) names.push_back(known);
  throw CheckpointError("MU204", "no tensor is named " + in_quotes(name) + "; there are:" + checkpoint::list_of(names));
}

LoadedWeights load_file(const std::filesystem::path& path, const LoadFileOptions& options) {
  const WeightSource source = checkpoint::open_weights(path);
  LoadedWeights loaded{.metadata = source.metadata, .tensors = {}};
  checkpoint::Mappings mappings;
  std::vector<Transfer> transfers;
  for (const auto& [name, stored] : source.tensors) {
    checkpoint::check_booleans(stored);
    if (options.map) {
      loaded.tensors.emplace_back(name, mappings.tensor(stored));
      continue;
    }
    loaded.tensors.emplace_back(name, at::empty(stored.shape, at::TensorOptions().dtype(stored.type)));
    transfers.push_back(checkpoint::whole(stored, loaded.tensors.back().second.mutable_data_ptr()));
  }
  checkpoint::read_all(transfers);
  return loaded;
}

IncompatibleKeys load_into(const NamedTensors& destinations, const std::filesystem::path& path,
                           const LoadIntoOptions& options) {
  const WeightSource source = checkpoint::open_weights(path);
  const Matches matches = match(destinations, source);
  const auto problems =
      checkpoint::mismatch("file", "shape or dtype differs", matches.different, matches.report, options.strict);
  if (!problems.empty()) throw CheckpointError("MU204", path.string() + " does not fit, nothing was loaded" + problems);
  for (const auto& [stored, destination] : matches.pairs) checkpoint::check_booleans(*stored);
  fill(matches);
  return matches.report;
}

}  // namespace muster
