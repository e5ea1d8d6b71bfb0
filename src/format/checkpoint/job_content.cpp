#include "job_content.h"

#include <algorithm>
#include <string>
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

namespace {

using Made = PythonValue::Kind;

/// The oldest version of Lightning with this layout: an older Lightning warns about a newer version in a file.
constexpr const char* kLayout = "2.0.0";

const PythonValue* trainer_entry(const StoredContent& stored) {
  const PythonValue* shared = stored.is_checkpoint ? stored.content.value.find("shared") : nullptr;
  return shared ? shared->find("trainer") : nullptr;
}

std::int64_t counter(const PythonValue& entry, const char* name) {
  const PythonValue* found = entry.find(name);
  return found && found->kind == Made::integer ? found->integer : 0;
}

PythonValue empty(Made kind) {
  PythonValue value;
  value.kind = kind;
  return value;
}

void set(PythonValue& map, std::string key, PythonValue value) {
  map.entries.emplace_back(PythonValue::of_text(std::move(key)), std::move(value));
}

PythonValue counters(std::initializer_list<const char*> names, std::int64_t count, std::int64_t completed) {
  auto map = empty(Made::map);
  for (const char* name : names) set(map, name, PythonValue::of_integer(count));
  set(map, "completed", PythonValue::of_integer(completed));
  return map;
}

/// A node of Lightning's progress; `current` counts from the start of the current fit(), epoch or batch.
PythonValue progress(std::initializer_list<const char*> names, std::int64_t total, std::int64_t current,
                     std::int64_t uncompleted = 0) {
  auto map = empty(Made::map);
  set(map, "total", counters(names, total, total - uncompleted));
  set(map, "current", counters(names, current, current - uncompleted));
  return map;
}

PythonValue fit_loop(const LightningParts& parts) {
  // At the end of an epoch, Lightning saves before it counts the epoch as completed.
  const bool at_end = parts.epochs > 0 && !parts.in_epoch;
  auto loop = empty(Made::map);
  set(loop, "epoch_progress", progress({"ready", "started", "processed"}, parts.epochs, parts.epochs, at_end ? 1 : 0));
  auto batches = progress({"ready", "started", "processed"}, parts.batches, 0);
  auto last = empty(Made::boolean);
  last.integer = at_end;
  set(batches, "is_last_batch", std::move(last));
  set(loop, "epoch_loop.batch_progress", std::move(batches));
  auto optimizer = empty(Made::map), steps = empty(Made::map), stepped = empty(Made::map);
  set(optimizer, "step", progress({"ready"}, parts.global_step, 0));
  set(optimizer, "zero_grad", progress({"ready", "started"}, parts.global_step, 0));
  set(steps, "optimizer", std::move(optimizer));
  set(loop, "epoch_loop.automatic_optimization.optim_progress", std::move(steps));
  set(loop, "epoch_loop.manual_optimization.optim_step_progress", progress({"ready"}, parts.global_step, 0));
  set(stepped, "_batches_that_stepped", PythonValue::of_integer(parts.global_step));
  set(loop, "epoch_loop.state_dict", std::move(stepped));
  return loop;
}

}  // namespace

bool is_trainers(const StoredContent& stored) { return trainer_entry(stored) != nullptr; }

LightningParts lightning_parts(StoredContent& stored) {
  LightningParts parts;
  const PythonValue* entry = trainer_entry(stored);
  if (!entry) return parts;
  parts.batches = counter(*entry, "total_batches");
  parts.epochs = counter(*entry, "epoch");
  parts.global_step = counter(*entry, "global_step");
  parts.in_epoch = counter(*entry, "batches") > 0;
  if (const PythonValue* options = entry->find("hyper_parameters")) parts.hyper_parameters = *options;
  const PythonValue* schedulers = stored.content.value.find("shared")->find("schedulers");
  parts.has_optimizers = !schedulers || schedulers->items.empty();
  if (!parts.has_optimizers) return parts;
  auto all = exchanged_value(stored, WeightForm::torch, -1);
  for (auto& [name, value] : all.entries)
    if (name.text.starts_with("optimizer")) parts.optimizers.push_back(std::move(value));
  return parts;
}

PythonValue lightning_value(PythonValue weights, LightningParts parts) {
  auto all = empty(Made::map), loops = empty(Made::map);
  const bool at_end = parts.epochs > 0 && !parts.in_epoch;
  set(all, "epoch", PythonValue::of_integer(parts.epochs - (at_end ? 1 : 0)));
  set(all, "global_step", PythonValue::of_integer(parts.global_step));
  set(all, "pytorch-lightning_version", PythonValue::of_text(kLayout));
  set(all, "state_dict", std::move(weights));
  set(loops, "fit_loop", fit_loop(parts));
  for (const char* other : {"validate_loop", "test_loop", "predict_loop"}) set(loops, other, empty(Made::map));
  set(all, "loops", std::move(loops));
  set(all, "callbacks", empty(Made::map));
  if (parts.has_optimizers) {
    auto states = empty(Made::list);
    states.items = std::move(parts.optimizers);
    set(all, "optimizer_states", std::move(states));
    set(all, "lr_schedulers", empty(Made::list));
  }
  if (parts.hyper_parameters.kind == Made::map) {
    set(all, "hparams_name", PythonValue::of_text("kwargs"));
    set(all, "hyper_parameters", std::move(parts.hyper_parameters));
  }
  return all;
}

}  // namespace muster::format
