#include "format/checkpoint/lightning_content.h"

#include <string>
#include <utility>

#include "format/checkpoint/job_content.h"

namespace muster::format {
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
