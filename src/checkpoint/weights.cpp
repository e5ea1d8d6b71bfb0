#include "muster/checkpoint/weights.h"

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

std::vector<format::TensorSpec> specs_of(const NamedTensors& tensors, const fs::path& path) {
  std::vector<format::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(checkpoint::spec_of(name, tensor, path.string()));
  return specs;
}

/// Writes values in a few large calls.
format::WriteValues values_of(const NamedTensors& tensors, const ValueOf& value_of) {
  return [&](format::AtomicFile& file, std::span<const std::size_t> order) {
    const auto tensor_at = [&](std::size_t i) {
      const at::Tensor& tensor = tensors[order[i]].second;
      return value_of ? value_of(tensor) : tensor;
    };
    std::vector<std::string_view> pieces;
    const auto flush = [&] {
      file.write(pieces);
      pieces.clear();
    };
    checkpoint::append_tensors(
        order.size(), tensor_at, [&](std::string_view bytes) { pieces.push_back(bytes); }, flush);
  };
}

void check_names(const NamedTensors& tensors, const fs::path& path) {
  std::map<std::string_view, int> seen;
  for (const auto& [name, tensor] : tensors)
    if (seen[name]++ > 0)
      throw CheckpointError("MU203", path.string() + " was not written: two tensors are named " + in_quotes(name));
}

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
    if (std::ranges::none_of(matches.pairs, [&tensor = destination](const auto& pair) {
          return checkpoint::are_tied(pair.second, tensor);
        }))
      matches.report.missing_keys.push_back(name);
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

void save_file(const NamedTensors& tensors, const fs::path& path, const SaveFileOptions& options) {
  check_names(tensors, path);
  const checkpoint::UntiedTensors untied = checkpoint::drop_tied(tensors);
  format::Metadata metadata = options.metadata;
  metadata.insert(untied.kept_name_of.begin(), untied.kept_name_of.end());
  format::write_weight_file(path, specs_of(untied.tensors, path), metadata, options.durability,
                            values_of(untied.tensors, {}))
      ->publish();
}

std::vector<fs::path> save_weights(const NamedTensors& tensors, const fs::path& folder,
                                   const SaveWeightsOptions& options, const ValueOf& value_of) {
  check_names(tensors, folder);
  const checkpoint::UntiedTensors untied = checkpoint::drop_tied(tensors);
  return format::write_weight_set(folder, specs_of(untied.tensors, folder), options.metadata, untied.kept_name_of,
                                  options.max_shard_size.bytes(), options.durability,
                                  values_of(untied.tensors, value_of));
}

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
