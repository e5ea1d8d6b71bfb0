#include "format/checkpoint/job_content.h"

#include <algorithm>
#include <utility>

#include "base/listing.h"
#include "base/shown.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

using Made = PythonValue::Kind;

struct Named {
  std::string name;
  PythonValue value;
};

bool holds_only_tensors(const PythonValue& value) {
  return value.kind == Made::map && !value.entries.empty() &&
         std::all_of(value.entries.begin(), value.entries.end(),
                     [](const auto& entry) { return entry.second.kind == Made::tensor; });
}

/// The `field` of each entry of a list of the job, named "word", or "word_0", "word_1" if there are several.
std::vector<Named> from_list(const PythonValue& shared, const char* list, const char* field, const std::string& word) {
  std::vector<Named> found;
  const PythonValue* entries = shared.find(list);
  if (!entries || entries->kind != Made::list) return found;
  for (const PythonValue& entry : entries->items)
    if (const PythonValue* part = entry.find(field)) found.push_back({word, *part});
  if (found.size() > 1)
    for (std::size_t i = 0; i < found.size(); ++i) found[i].name += "_" + std::to_string(i);
  return found;
}

struct Job {
  std::vector<Named> models, others;
};

/// save_state() stores lists; save() stores the names it was given.
Job job_of(const PythonValue& shared) {
  Job job;
  if (shared.find("models")) {
    job.models = from_list(shared, "models", "weights", "model");
    job.others = from_list(shared, "optimizers", "inner", "optimizer");
    return job;
  }
  for (const auto& [key, value] : shared.entries) {
    const PythonValue* inner = value.find("inner");
    if (holds_only_tensors(value)) job.models.push_back({key.text, value});
    else job.others.push_back({key.text, inner ? *inner : value});
  }
  return job;
}

/// Replaces each {"sliced": name, "order": dims} by the tensor, assembled from the shards of the ranks.
class Whole {
 public:
  explicit Whole(StoredContent& stored) : stored_(stored), sharded_(*stored.content.value.find("sliced")) {}

  void operator()(PythonValue& value) {
    const PythonValue* name = value.entries.size() == 2 ? value.find("sliced") : nullptr;
    const PythonValue* order = name ? value.find("order") : nullptr;
    if (order && name->kind == Made::text && order->kind == Made::list) {
      value = tensor(name->text, order->items);
      return;
    }
    for (auto& [key, part] : value.entries) (*this)(part);
    for (auto& item : value.items) (*this)(item);
  }

 private:
  PythonValue tensor(const std::string& name, const std::vector<PythonValue>& order) {
    const PythonValue* found = sharded_.find(name);
    if (!found) refuse(name);
    const PythonTensor in_memory = stored_.content.tensors[static_cast<std::size_t>(found->integer)];
    PythonTensor view = in_memory;
    std::vector<bool> taken(order.size());
    if (order.size() != view.shape.size()) refuse(name);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto to = static_cast<std::size_t>(order[i].integer);
      if (order[i].kind != Made::integer || to >= order.size() || taken[to]) refuse(name);
      taken[to] = true;
      view.shape[to] = in_memory.shape[i];
      view.strides[to] = in_memory.strides[i];
    }
    stored_.content.tensors.push_back(std::move(view));
    return PythonValue::of_tensor(stored_.content.tensors.size() - 1);
  }

  [[noreturn]] void refuse(const std::string& name) const {
    throw CheckpointError("MU213", "the checkpoint's state asks for the spread tensor " + in_quotes(name) +
                                       " in a way that cannot be; it was edited");
  }

  StoredContent& stored_;
  const PythonValue& sharded_;
};

}  // namespace

PythonValue exchanged_value(StoredContent& stored, WeightForm form, int model) {
  PythonValue* shared = const_cast<PythonValue*>(stored.content.value.find("shared"));
  if (shared) Whole{stored}(*shared);
  Job job = shared ? job_of(*shared) : Job{};
  const auto refuse = [](const std::string& why) { throw CheckpointError("MU229", "nothing was converted: " + why); };
  const auto names = listed(job.models, [](const Named& one) { return shown(one.name); });
  if (model >= static_cast<int>(job.models.size()))
    refuse("the checkpoint has no model " + std::to_string(model) + "; it has: " + names);
  if (form != WeightForm::torch) {
    if (job.models.empty()) refuse("the checkpoint has no model's weights by themselves; name the part to convert");
    if (job.models.size() > 1 && model < 0)
      refuse("the checkpoint has several models, choose one by its number from 0: " + names);
    return std::move(job.models[static_cast<std::size_t>(std::max(model, 0))].value);
  }
  if (model >= 0) return std::move(job.models[static_cast<std::size_t>(model)].value);
  PythonValue all;
  all.kind = Made::map;
  for (auto* part : {&job.models, &job.others})
    for (Named& one : *part) all.entries.emplace_back(PythonValue::of_text(one.name), std::move(one.value));
  return all;
}

}  // namespace muster::format
