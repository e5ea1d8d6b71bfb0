#include "base/log.h"
#include "base/text.h"
#include "checkpoint/python_content.h"
#include "comm/agreement.h"
#include "format/checksum.h"
#include "format/weight_set.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/runtime.h"
#include "muster/runtime/opened_checkpoint.h"
#include "runtime/saved_tensors.h"
#include "runtime_state.h"

namespace muster::runtime {
namespace {

namespace fs = std::filesystem;

/// Bytes of each tensor that ranks compare: one page. The weights of two saves differ at their beginnings, and a page
/// costs next to nothing.
constexpr std::size_t kComparedBytes = 4096;

bool is_tensor(const State& state) { return state.kind() == State::Kind::tensor; }

bool holds_tensors_only(const State& state) {
  return state.kind() == State::Kind::map && !state.map().empty() &&
         std::all_of(state.map().begin(), state.map().end(), [](const auto& entry) { return is_tensor(entry.second); });
}

/// Where the weights may be in the file of a training program: "" if tensors are at the top level, otherwise the names
/// of the dictionaries of tensors.
std::vector<std::string> places_of_weights(const State::Map& entries) {
  std::vector<std::string> places;
  for (const auto& [name, value] : entries) {
    if (is_tensor(value)) return {""};
    if (holds_tensors_only(value)) places.push_back(name);
  }
  return places;
}

/// Refuses entries that could not be read if the module needs them; other unreadable entries are allowed.
void refuse_needed(const checkpoint::PythonContent& saved, const std::string& front, const torch::nn::Module& module,
                   const fs::path& path) {
  const auto weights = weights_of(module);
  for (const auto& part : saved.left_out)
    if (std::any_of(weights.begin(), weights.end(), [&](const auto& one) { return part.place == front + one.first; }))
      checkpoint::refuse(part, path);
}

/// The weights in a file of torch.save. Other contents are left out, and the note names them.
State weights_among(const checkpoint::PythonContent& saved, const fs::path& path, const torch::nn::Module& module,
                    const std::string& prefix, std::string& note) {
  const bool is_map = saved.value.kind() == State::Kind::map;
  const auto places = is_map ? places_of_weights(saved.value.map()) : std::vector<std::string>();
  if (places.empty() && !saved.left_out.empty()) checkpoint::refuse(saved.left_out.front(), path);
  if (!is_map) return saved.value;
  const auto place = places.size() == 1 ? places.front() : "";
  refuse_needed(saved, (place.empty() ? "" : place + "/") + prefix, module, path);
  State::Map weights;
  std::vector<std::string> others;
  for (const auto& [name, value] : saved.value.map()) {
    const bool taken = place.empty() ? is_tensor(value) || !saved.is_archive : name == place;
    if (taken) weights.emplace_back(name, value);
    else others.push_back(shown(name));
  }
  for (const auto& part : saved.left_out)
    if (!saved.value.find(part.place.substr(0, part.place.find('/'))))
      others.push_back(in_quotes(part.place) + ", " + part.what);
  if (!place.empty() || !others.empty())
    note = formatted("load_model: took {} of {}{}{}", place.empty() ? "the tensors" : in_quotes(place), path.string(),
                     others.empty() ? "" : "; left out: ", joined(others, {}, kMostListed));
  return place.empty() ? State(std::move(weights)) : weights.front().second;
}

/// Gives names that a safetensors file leaves out the tensor they are tied to, if the module asks for them.
void add_tied(State::Map& weights, const LoadedWeights& loaded, const torch::nn::Module& module,
              const std::string& prefix) {
  for (const auto& [name, _] : weights_of(module)) {
    const auto kept = loaded.metadata.find(prefix + name);
    if (kept == loaded.metadata.end()) continue;
    const auto find = [&](const std::string& wanted) {
      return std::ranges::find(loaded.tensors, wanted, [](const auto& entry) -> const auto& { return entry.first; });
    };
    const auto value = find(kept->second);
    if (find(prefix + name) == loaded.tensors.end() && value != loaded.tensors.end())
      weights.emplace_back(prefix + name, value->second);
  }
}

State weights_in(const fs::path& path, const torch::nn::Module& module, const std::string& prefix, std::string& note) {
  if (format::is_of_python(format::find_weight_set(path)))
    return weights_among(checkpoint::read_python(path), path, module, prefix, note);
  const auto loaded = load_file(path);
  State::Map weights(loaded.tensors.begin(), loaded.tensors.end());
  add_tied(weights, loaded, module, prefix);
  return weights;
}

/// A digest of names, shapes, dtypes, and the beginning of each tensor that is used.
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

State bare_weights(const fs::path& path, const torch::nn::Module& module) {
  std::string note;
  return weights_in(path, module, "", note);
}

IncompatibleKeys load_weights(RuntimeState& state, const std::shared_ptr<torch::nn::Module>& module,
                              const fs::path& path, const LoadStateDictOptions& options) {
  if (!module) throw UsageError("MU173", "load_model was given an empty module holder; make the module first");
  const auto prepared = state.prepared(*module);
  std::string note;
  StateDictFit fit;
  std::function<void()> write;
  const auto signatures = comm::all_gather_result(state.placement().group(), "reading weights for load_model", [&] {
    fit = fit_state_dict(*module, weights_in(path, *module, options.prefix, note), options, path.string());
    write = prepared ? prepare_values(*prepared, fit.pairs) : [&] { copy_values(fit.pairs); };
    return signature(fit);
  });
  require_equal(signatures, path);
  write();
  if (!note.empty() && state.placement().cluster().is_main()) log::warning(note);
  return std::move(fit.report);
}

}  // namespace muster::runtime
