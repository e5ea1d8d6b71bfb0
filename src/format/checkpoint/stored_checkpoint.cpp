#include "format/checkpoint/stored_checkpoint.h"

#include <bit>

#include "base/text.h"
#include "format/checksum.h"
#include "format/manifest.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using Made = PythonValue::Kind;
constexpr std::uint64_t kMaxIndexText = 1'000'000'000;  // limit on a manifest or an index in bytes

[[noreturn]] void refuse_part(const fs::path& file, const std::string& what) {
  throw CheckpointError("MU213",
                        file.string() + " " + what + "; the checkpoint was edited, torn, or put together from two");
}

Manifest manifest_of(const fs::path& folder) {
  return parse_manifest(InputFile(folder / kManifestName).read_text(kMaxIndexText), (folder / kManifestName).string());
}

/// The files of one rank and the values of its states.
class RankContent {
 public:
  RankContent(StoredContent& stored, const fs::path& folder, const Manifest& manifest, int rank)
      : stored_(stored), index_path_(folder / rank_index_name(rank)), file_path_(folder / rank_file_name(rank)) {
    const InputFile text_file(index_path_);
    const std::string text = text_file.read_text(kMaxIndexText);
    const FileMark& mark = manifest.indexes[static_cast<std::size_t>(rank)];
    if (text.size() != mark.bytes || checksum_of(text) != mark.checksum)
      refuse_part(index_path_, "is not the file that the manifest knows");
    index = parse_rank_index(text, index_path_.string());
    if (index.id != manifest.id || index.rank != rank) refuse_part(index_path_, "is of another save or rank");
    file_ = std::make_shared<const InputFile>(file_path_);
    if (file_->size() != index.file_bytes) refuse_part(file_path_, "has another size than its index knows");
    for (TensorEntry& entry : read_header(*file_).tensors) {
      std::string name = entry.name;
      entries_.emplace(std::move(name), std::move(entry));
    }
  }

  RankIndex index;

  const TensorEntry& entry(const std::string& name) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) refuse_part(index_path_, "names a tensor that is not in the rank's file");
    return found->second;
  }
  const std::shared_ptr<const InputFile>& file() const { return file_; }

  /// The state in the JSON, whose format docs/formats/checkpoint.md describes.
  PythonValue value(const Json& json) {
    if (json.is_null()) return {};
    if (const auto* truth = json.get<bool>()) return {.kind = Made::boolean, .integer = *truth};
    if (const auto* integer = json.get<std::int64_t>()) return PythonValue::of_integer(*integer);
    if (const auto* number = json.get<double>()) return {.kind = Made::number, .number = *number};
    if (const auto* text = json.get<std::string>()) return PythonValue::of_text(*text);
    const auto* list = json.get<Json::List>();
    if (!list) return marked(*json.get<Json::Map>());
    PythonValue made{.kind = Made::list};
    for (const Json& item : *list) made.items.push_back(value(item));
    return made;
  }

 private:
  PythonValue marked(const Json::Map& map) {
    if (map.size() != 1) refuse_part(index_path_, "has a state that cannot be understood");
    const auto& [mark, content] = map.front();
    const auto* text = content.get<std::string>();
    if (const auto* named = mark == "map" ? content.get<Json::Map>() : nullptr) return of_map(*named);
    if (mark == "tensor" && content.is_null()) return {};
    if (mark == "tensor" && text) return tensor(*text);
    if (mark == "bytes" && text) return PythonValue::of_text(hexadecimal(bytes_of_hex(*text)), Made::bytes);
    const auto bits = mark == "number" && text ? from_hex(*text) : std::nullopt;
    if (!bits) refuse_part(index_path_, "has a state that cannot be understood");
    return {.kind = Made::number, .number = std::bit_cast<double>(*bits)};
  }

  /// If all names are integers, they were integer keys in Python.
  PythonValue of_map(const Json::Map& named) {
    PythonValue made{.kind = Made::map};
    const bool integers =
        std::all_of(named.begin(), named.end(), [](const auto& entry) { return is_decimal_key(entry.first); });
    for (const auto& [name, part] : named)
      made.entries.emplace_back(
          integers ? PythonValue::of_integer(std::stoll(name)) : PythonValue::of_text(hexadecimal(unescaped(name))),
          value(part));
    return made;
  }

  PythonValue tensor(const std::string& name) {
    const auto [place, fresh] = made_.emplace(name, 0);
    if (!fresh) return PythonValue::of_tensor(place->second);
    PythonValue made = add_tensor(stored_, file_, entry(name));
    place->second = static_cast<std::size_t>(made.integer);
    return made;
  }

  std::string hexadecimal(std::optional<std::string> bytes) const {
    if (!bytes) refuse_part(index_path_, "has bytes that are not hexadecimal");
    return *std::move(bytes);
  }

  StoredContent& stored_;
  fs::path index_path_, file_path_;
  std::shared_ptr<const InputFile> file_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::size_t> made_;
};

/// A tensor that is sharded over the ranks' files, assembled from its shards, which are in order.
PythonValue full_tensor(StoredContent& stored, const std::vector<RankContent>& ranks,
                        std::span<const ShardEntry> shards) {
  const ShardEntry& first = shards.front();
  TensorEntry full;
  full.name = first.name;
  full.shape = first.shape;
  full.type = *element_type(first.dtype);
  std::vector<Extent> extents;
  const auto add = [&](const ShardEntry& shard) {
    extents.push_back({ranks[static_cast<std::size_t>(shard.rank)].file(), shard.offset, shard.bytes});
    full.bytes += shard.bytes;
  };
  for (const ShardEntry& shard : shards)
    if (shard.bytes > 0) add(shard);
  if (extents.empty()) add(first);
  PythonValue made = add_tensor(stored, extents.front().file, full);
  stored.extents.back() = std::move(extents);
  return made;
}

PythonValue sharded_tensors(StoredContent& stored, const std::vector<RankContent>& ranks, const fs::path& folder) {
  std::vector<ShardEntry> shards;
  for (const RankContent& rank : ranks)
    for (const ShardEntry& shard : rank.index.shards) {
      const TensorEntry& values = rank.entry(shard.tensor);
      if (values.shape.size() != 1) refuse_part(folder, "has a shard of more than one dimension");
      shards.push_back(located(shard, values, values.shape[0], rank.index.rank));
    }
  shards = check_shards(std::move(shards), folder.string());
  PythonValue made{.kind = Made::map};
  for (auto first = shards.cbegin(), end = first; first != shards.cend(); first = end) {
    end = std::find_if(first, shards.cend(), [&](const ShardEntry& shard) { return shard.name != first->name; });
    made.add(first->name, full_tensor(stored, ranks, {first, end}));
  }
  return made;
}

struct Named {
  std::string name;
  PythonValue value;
};

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
    if (is_state_dict(value)) job.models.push_back({key.text, value});
    else job.others.push_back({key.text, inner ? *inner : value});
  }
  return job;
}

/// The tensor of this name, assembled from the shards of the ranks, with its dims in this order.
PythonValue whole_tensor(StoredContent& stored, const std::string& name, const std::vector<PythonValue>& order) {
  const auto refuse = [&] {
    throw CheckpointError("MU213", "the checkpoint's state asks for the spread tensor " + in_quotes(name) +
                                       " in a way that cannot be; it was edited");
  };
  const PythonValue* found = stored.content.value.find("sliced")->find(name);
  if (!found) refuse();
  const PythonTensor in_memory = stored.content.tensors[static_cast<std::size_t>(found->integer)];
  PythonTensor view = in_memory;
  std::vector<bool> taken(order.size());
  if (order.size() != view.shape.size()) refuse();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto to = static_cast<std::size_t>(order[i].integer);
    if (order[i].kind != Made::integer || to >= order.size() || taken[to]) refuse();
    taken[to] = true;
    view.shape[to] = in_memory.shape[i];
    view.strides[to] = in_memory.strides[i];
  }
  stored.content.tensors.push_back(std::move(view));
  return PythonValue::of_tensor(stored.content.tensors.size() - 1);
}

/// Replaces each {"sliced": name, "order": dims} by the tensor.
void make_whole(StoredContent& stored, PythonValue& value) {
  const PythonValue* name = value.entries.size() == 2 ? value.find("sliced") : nullptr;
  const PythonValue* order = name ? value.find("order") : nullptr;
  if (order && name->kind == Made::text && order->kind == Made::list) {
    value = whole_tensor(stored, name->text, order->items);
    return;
  }
  for (auto& [key, part] : value.entries) make_whole(stored, part);
  for (auto& item : value.items) make_whole(stored, item);
}

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

PythonValue counters(std::initializer_list<const char*> names, std::int64_t count, std::int64_t completed) {
  PythonValue map{.kind = Made::map};
  for (const char* name : names) map.add(name, PythonValue::of_integer(count));
  map.add("completed", PythonValue::of_integer(completed));
  return map;
}

/// A node of Lightning's progress; `current` counts from the start of the current fit(), epoch or batch.
PythonValue progress(std::initializer_list<const char*> names, std::int64_t total, std::int64_t current,
                     std::int64_t uncompleted = 0) {
  PythonValue map{.kind = Made::map};
  map.add("total", counters(names, total, total - uncompleted));
  map.add("current", counters(names, current, current - uncompleted));
  return map;
}

PythonValue fit_loop(const LightningParts& parts) {
  // At the end of an epoch, Lightning saves before it counts the epoch as completed.
  const bool at_end = parts.epochs > 0 && !parts.in_epoch;
  PythonValue loop{.kind = Made::map};
  loop.add("epoch_progress", progress({"ready", "started", "processed"}, parts.epochs, parts.epochs, at_end ? 1 : 0));
  auto batches = progress({"ready", "started", "processed"}, parts.batches, 0);
  batches.add("is_last_batch", {.kind = Made::boolean, .integer = at_end});
  loop.add("epoch_loop.batch_progress", std::move(batches));
  PythonValue optimizer{.kind = Made::map}, steps{.kind = Made::map}, stepped{.kind = Made::map};
  optimizer.add("step", progress({"ready"}, parts.global_step, 0));
  optimizer.add("zero_grad", progress({"ready", "started"}, parts.global_step, 0));
  steps.add("optimizer", std::move(optimizer));
  loop.add("epoch_loop.automatic_optimization.optim_progress", std::move(steps));
  loop.add("epoch_loop.manual_optimization.optim_step_progress", progress({"ready"}, parts.global_step, 0));
  stepped.add("_batches_that_stepped", PythonValue::of_integer(parts.global_step));
  loop.add("epoch_loop.state_dict", std::move(stepped));
  return loop;
}

}  // namespace

void check_checkpoint_values(const fs::path& folder) {
  const Manifest manifest = manifest_of(folder);
  std::vector<char> piece(1 << 20);
  for (int rank = 0; rank < static_cast<int>(manifest.indexes.size()); ++rank) {
    const fs::path index_path = folder / rank_index_name(rank);
    const RankIndex index = parse_rank_index(InputFile(index_path).read_text(kMaxIndexText), index_path.string());
    const InputFile file(folder / rank_file_name(rank));
    if (file.size() != index.file_bytes) refuse_part(file.path(), "has another size than its index knows");
    Checksum sum;
    for (std::uint64_t at = 0, block = 0; at < index.file_bytes; ++block, sum.reset()) {
      const std::uint64_t end = std::min(at + index.block_bytes, index.file_bytes);
      for (; at < end; at += std::min<std::uint64_t>(piece.size(), end - at)) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), end - at));
        file.read_at(at, piece.data(), bytes);
        sum.update(piece.data(), bytes);
      }
      if (sum.value() != index.checksums[block])
        refuse_part(file.path(), "has values that are not those that were saved, before byte " + std::to_string(end));
    }
  }
}

StoredContent open_checkpoint(const fs::path& folder) {
  const Manifest manifest = manifest_of(folder);
  StoredContent stored;
  stored.kind = "checkpoint folder of " + std::to_string(manifest.indexes.size()) +
                (manifest.indexes.size() == 1 ? " rank" : " ranks");
  stored.is_checkpoint = true;
  std::vector<RankContent> ranks;
  for (std::size_t rank = 0; rank < manifest.indexes.size(); ++rank)
    ranks.emplace_back(stored, folder, manifest, static_cast<int>(rank));
  PythonValue own{.kind = Made::list}, all{.kind = Made::map};
  PythonValue shared = ranks.empty() ? PythonValue() : ranks.front().value(ranks.front().index.shared);
  for (RankContent& rank : ranks) own.items.push_back(rank.value(rank.index.own));
  PythonValue sliced = sharded_tensors(stored, ranks, folder);
  all.add("shared", std::move(shared));
  all.add("own", std::move(own));
  all.add("sliced", std::move(sliced));
  stored.content.value = std::move(all);
  return stored;
}

bool is_state_dict(const PythonValue& value) {
  return value.kind == Made::map && !value.entries.empty() &&
         std::all_of(value.entries.begin(), value.entries.end(),
                     [](const auto& entry) { return entry.second.kind == Made::tensor; });
}

PythonValue exchanged_value(StoredContent& stored, WeightForm form, int model) {
  PythonValue* shared = const_cast<PythonValue*>(stored.content.value.find("shared"));
  if (shared) make_whole(stored, *shared);
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
  PythonValue all{.kind = Made::map};
  for (auto* part : {&job.models, &job.others})
    for (Named& one : *part) all.add(one.name, std::move(one.value));
  return all;
}

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
  PythonValue all{.kind = Made::map}, loops{.kind = Made::map};
  const bool at_end = parts.epochs > 0 && !parts.in_epoch;
  all.add("epoch", PythonValue::of_integer(parts.epochs - (at_end ? 1 : 0)));
  all.add("global_step", PythonValue::of_integer(parts.global_step));
  all.add("pytorch-lightning_version", PythonValue::of_text(kLayout));
  all.add("state_dict", std::move(weights));
  loops.add("fit_loop", fit_loop(parts));
  for (const char* other : {"validate_loop", "test_loop", "predict_loop"}) loops.add(other, {.kind = Made::map});
  all.add("loops", std::move(loops));
  all.add("callbacks", {.kind = Made::map});
  if (parts.has_optimizers) {
    all.add("optimizer_states", {.kind = Made::list, .items = std::move(parts.optimizers)});
    all.add("lr_schedulers", {.kind = Made::list});
  }
  if (parts.hyper_parameters.kind == Made::map) {
    all.add("hparams_name", PythonValue::of_text("kwargs"));
    all.add("hyper_parameters", std::move(parts.hyper_parameters));
  }
  return all;
}

}  // namespace muster::format
