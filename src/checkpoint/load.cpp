#include <algorithm>
#include <set>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/shown.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/element_types.h"
#include "checkpoint/tied_tensors.h"
#include "checkpoint/weight_source.h"
#include "muster/base/error.h"
#include "muster/checkpoint/weights.h"

namespace muster {
namespace {

using checkpoint::StoredTensor;
using checkpoint::Transfer;
using checkpoint::WeightSource;

std::string list_of(const std::vector<std::string>& words) {
  constexpr std::size_t kShown = 20, kLongest = 400;  // limits on names in a message, and on the bytes of a name
  std::string text;
  for (std::size_t i = 0; i < std::min(words.size(), kShown); ++i) text += (i ? ", " : " ") + shown(words[i], kLongest);
  return words.size() > kShown ? text + " and " + std::to_string(words.size() - kShown) + " more" : text;
}

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

void check(const Matches& matches, const std::filesystem::path& path, bool strict) {
  std::string problems;
  if (!matches.different.empty()) problems += "; shape or dtype differs:" + list_of(matches.different);
  if (strict && !matches.report.missing_keys.empty())
    problems += "; the file lacks:" + list_of(matches.report.missing_keys);
  if (strict && !matches.report.unexpected_keys.empty())
    problems += "; only the file has:" + list_of(matches.report.unexpected_keys);
  if (!problems.empty()) throw CheckpointError("MU204", path.string() + " does not fit, nothing was loaded" + problems);
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
  throw CheckpointError("MU204", "no tensor is named " + in_quotes(name) + "; there are:" + list_of(names));
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
  check(matches, path, options.strict);
  for (const auto& [stored, destination] : matches.pairs) checkpoint::check_booleans(*stored);
  fill(matches);
  return matches.report;
}

}  // namespace muster
