#include "format/python/python_archive.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "format/stored_content.h"

namespace muster::format {
namespace {

using Made = PythonValue::Kind;

/// Entries that LibTorch adds to every module.
bool is_bookkeeping(std::string_view name) { return name == "training" || name == "_is_full_backward_hook"; }

void flatten(PythonValue& value, const std::string& prefix, std::vector<PythonValue::Entry>& into) {
  for (auto& [key, part] : value.entries) {
    if (is_bookkeeping(key.text)) continue;
    const auto name = prefix + key_name(key);
    if (part.kind == Made::map && !part.text.empty()) flatten(part, name + ".", into);
    else into.emplace_back(PythonValue::of_text(name), std::move(part));
  }
}

bool is_optimizer(const PythonValue& root) {
  const PythonValue* state = root.find("state");
  const PythonValue* groups = root.find("param_groups");
  return root.find("pytorch_version") && state && groups && state->kind == Made::map && groups->kind == Made::map;
}

void drop_bookkeeping(PythonValue& value) {
  std::erase_if(value.entries, [](const auto& entry) { return is_bookkeeping(entry.first.text); });
}

/// The entries "PREFIX0", "PREFIX1" and so on, in order.
std::vector<PythonValue*> numbered(PythonValue& value, const std::string& prefix) {
  std::vector<PythonValue*> found;
  for (std::size_t i = 0;; ++i) {
    const auto* part = value.find(prefix + std::to_string(i));
    if (!part) return found;
    found.push_back(const_cast<PythonValue*>(part));
  }
}

/// An optimizer's archive identifies parameters by their addresses; Python numbers them over all groups.
PythonValue python_optimizer(PythonValue& root) {
  PythonValue groups, states, result;
  groups.kind = Made::list;
  states.kind = result.kind = Made::map;
  std::map<std::string, std::int64_t> index_of;
  auto& stored_groups = const_cast<PythonValue&>(*root.find("param_groups"));
  for (PythonValue* stored : numbered(stored_groups, "param_groups/")) {
    PythonValue group, indices;
    indices.kind = Made::list;
    group.kind = Made::map;
    if (const auto* options = stored->find("options")) group = *options;
    drop_bookkeeping(group);
    for (const PythonValue* address : numbered(*stored, "params/")) {
      const auto index = static_cast<std::int64_t>(index_of.size());
      index_of.emplace(address->text, index);
      indices.items.push_back(PythonValue::of_integer(index));
    }
    group.entries.emplace_back(PythonValue::of_text("params"), std::move(indices));
    groups.items.push_back(std::move(group));
  }
  std::map<std::int64_t, PythonValue> sorted;
  auto& stored_states = const_cast<PythonValue&>(*root.find("state"));
  for (auto& [address, state] : stored_states.entries)
    if (const auto found = index_of.find(address.text); found != index_of.end()) {
      drop_bookkeeping(state);
      sorted.emplace(found->second, std::move(state));
    }
  for (auto& [index, state] : sorted) states.entries.emplace_back(PythonValue::of_integer(index), std::move(state));
  result.entries.emplace_back(PythonValue::of_text("state"), std::move(states));
  result.entries.emplace_back(PythonValue::of_text("param_groups"), std::move(groups));
  return result;
}

}  // namespace

PythonValue value_of_archive(PythonValue root) {
  if (root.kind != Made::map || root.text.empty()) return root;
  if (is_optimizer(root)) return python_optimizer(root);
  PythonValue flat;
  flat.kind = Made::map;
  flat.text = std::move(root.text);
  flatten(root, "", flat.entries);
  return flat;
}

}  // namespace muster::format
