#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "model_state.h"
#include "muster/base/detail/log.h"
#include "muster/base/detail/shown.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/checkpoint/python.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/comm/detail/agreement.h"
#include "muster/format/detail/byte_source.h"
#include "muster/format/detail/checksum.h"
#include "muster/format/detail/input_file.h"
#include "muster/format/detail/python_file.h"
#include "muster/runtime/detail/saving.h"
#include "runtime_state.h"

namespace muster::runtime {
namespace {

namespace fs = std::filesystem;

/// As much of each tensor as ranks compare: weights of two saves differ at their beginnings, and one page costs next to
/// nothing.
constexpr std::size_t kComparedBytes = 4096;

bool is_torch_file(const fs::path& path) {
  return format::is_python_file(format::source_of(std::make_shared<const format::InputFile>(path)));
}

bool is_tensor(const State& state) { return state.kind() == State::Kind::tensor; }

bool holds_tensors_only(const State& state) {
  return state.kind() == State::Kind::map && !state.map().empty() &&
         std::all_of(state.map().begin(), state.map().end(), [](const auto& entry) { return is_tensor(entry.second); });
}

/// What training programs save beside weights is left out, if there can be no doubt which part are the weights.
State weights_among(State saved, const fs::path& path, std::string& note) {
  if (saved.kind() != State::Kind::map) return saved;
  const auto& entries = saved.map();
  if (std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return is_tensor(entry.second); }))
    return saved;
  const auto is_candidate = [](const auto& entry) { return holds_tensors_only(entry.second); };
  const auto found = std::find_if(entries.begin(), entries.end(), is_candidate);
  if (found == entries.end() || std::any_of(found + 1, entries.end(), is_candidate)) return saved;
  std::string others;
  for (const auto& [name, entry] : entries)
    if (name != found->first) others += (others.empty() ? "; left out: " : ", ") + shown(name);
  note = formatted("load_model: took {} of {}{}", in_quotes(found->first), path.string(), others);
  return found->second;
}

/// Names that a safetensors file does not repeat get the tensor they are tied to, where the module asks for them.
void add_tied(State::Map& weights, const LoadedWeights& loaded, const torch::nn::Module& module,
              const std::string& prefix) {
  for (const auto& [name, _] : weights_of(module)) {
    const auto kept = loaded.metadata.find(prefix + name);
    if (kept == loaded.metadata.end()) continue;
    const auto has = [&](const std::string& wanted) {
      return std::find_if(loaded.tensors.begin(), loaded.tensors.end(),
                          [&](const auto& entry) { return entry.first == wanted; });
    };
    const auto value = has(kept->second);
    if (has(prefix + name) == loaded.tensors.end() && value != loaded.tensors.end())
      weights.emplace_back(prefix + name, value->second);
  }
}

State weights_in(const fs::path& path, const torch::nn::Module& module, const std::string& prefix, std::string& note) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && is_torch_file(path)) return weights_among(load_python(path), path, note);
  const auto loaded = load_file(path);
  State::Map weights(loaded.tensors.begin(), loaded.tensors.end());
  add_tied(weights, loaded, module, prefix);
  return weights;
}

/// Of names, shapes, dtypes, and the beginning of each tensor that is used.
std::string signature(const StateDictFit& fit) {
  format::Checksum sum;
  const auto add_text = [&](const std::string& text) { sum.update(text.c_str(), text.size() + 1); };
  for (const auto* names : {&fit.report.missing_keys, &fit.report.unexpected_keys})
    for (const auto& name : *names) add_text(name);
  for (const auto& [_, value] : fit.pairs) {
    add_text(c10::str(value.scalar_type(), value.sizes()));
    if (value.is_contiguous() && value.device().is_cpu())
      sum.update(value.const_data_ptr(), std::min(value.nbytes(), kComparedBytes));
  }
  return format::to_hex(sum.value());
}

void require_equal(const std::vector<std::string>& signatures, const fs::path& path) {
  if (const auto found = comm::first_difference(signatures))
    throw CheckpointError("MU250", formatted("rank 0 and rank {} read different weights from {}: all ranks must see "
                                             "the same files, and nobody may write to "
                                             "them meanwhile; nothing was loaded",
                                             found->rank, path.string()));
}

}  // namespace

IncompatibleKeys Saving::load_weights(const std::shared_ptr<torch::nn::Module>& module, const fs::path& path,
                                      const LoadStateDictOptions& options) const {
  if (!module) throw UsageError("MU173", "load_model was given an empty module holder; make the module first");
  const auto prepared = state_->prepared(*module);
  std::string note;
  StateDictFit fit;
  std::function<void()> write;
  const auto signatures = comm::all_gather_result(state_->group(), "reading weights for load_model", [&] {
    fit = fit_state_dict(*module, weights_in(path, *module, options.prefix, note), options, path.string());
    write = prepared ? prepare_values(*prepared, fit.pairs) : [&] { copy_values(fit.pairs); };
    return signature(fit);
  });
  require_equal(signatures, path);
  write();
  if (!note.empty() && state_->cluster().is_main()) log::warning(note);
  return std::move(fit.report);
}

}  // namespace muster::runtime
