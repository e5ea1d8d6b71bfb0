#include "format/convert.h"

#include <tuple>

#include "base/text.h"
#include "format/checkpoint/stored_checkpoint.h"
#include "format/stored_content.h"
#include "format/weight_set.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using Kind = PythonValue::Kind;

constexpr std::array<std::pair<WeightForm, std::string_view>, 4> kForms{{{WeightForm::torch, "torch"},
                                                                         {WeightForm::safetensors, "safetensors"},
                                                                         {WeightForm::folder, "folder"},
                                                                         {WeightForm::lightning, "lightning"}}};

[[noreturn]] void refuse_conversion(const std::string& reason) {
  throw CheckpointError("MU229", "nothing was converted: " + reason);
}

WeightForm form_of_name(const fs::path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".safetensors") return WeightForm::safetensors;
  for (const char* known : {".pt", ".pth", ".bin", ".ckpt"})
    if (ending == known) return WeightForm::torch;
  if (ending.empty() || fs::is_directory(path)) return WeightForm::folder;
  throw UsageError("MU230",
                   "the name " + path.string() +
                       " does not tell what to write: end it with .safetensors, .pt, .pth, .bin or .ckpt, give a " +
                       "folder, or say which form to write (torch, safetensors, folder, lightning)");
}

/// The value at a path. Since keys may contain "/", the whole rest of a path may be one key.
PythonValue* find_part(PythonValue& value, std::string_view place) {
  if (place.empty()) return &value;
  const auto slash = place.find('/');
  const std::string_view first = place.substr(0, slash),
                         rest = slash == std::string_view::npos ? "" : place.substr(slash + 1);
  for (auto& [key, part] : value.entries) {
    const std::string name = key_name(key);
    if (name == place) return &part;
    if (name == first)
      if (PythonValue* found = find_part(part, rest)) return found;
  }
  for (std::size_t i = 0; i < value.items.size(); ++i)
    if (std::to_string(i) == first) return find_part(value.items[i], rest);
  return nullptr;
}

/// Limit on the length of a name, since a small file may share one name among many tensors.
constexpr std::size_t kMostName = 4096;

bool holds_tensors_only(const PythonValue& value) {
  if (value.kind == Kind::tensor) return true;
  const bool nested = value.kind == Kind::map || value.kind == Kind::list || value.kind == Kind::tuple;
  return nested && std::all_of(value.items.begin(), value.items.end(), holds_tensors_only) &&
         std::all_of(value.entries.begin(), value.entries.end(),
                     [](const auto& entry) { return holds_tensors_only(entry.second); });
}

/// The path of the weights in the file of a training script, such as {"model": weights, "optimizer": state, "epoch":
/// 3}; empty if the whole value can be written. Ignored entries are added to `left_out`.
std::string find_weights(const PythonValue& value, const std::string& file, std::vector<std::string>& left_out) {
  if (holds_tensors_only(value)) return {};
  std::vector<std::string> found;
  for (const auto& [key, part] : value.entries)
    if (is_state_dict(part)) found.push_back(key_name(key));
    else left_out.push_back(shown(key_name(key), kMostName));
  if (found.size() == 1) return found.front();
  left_out.clear();
  if (found.empty()) return {};
  const auto names = joined(
      found, [](const std::string& name) { return shown(name); }, 400);
  refuse_conversion(file + " has several state dicts: " + names + "; say which one to convert by --key");
}

/// Removes objects that are not understood, or refuses them.
void remove_foreign(PythonValue& value, const std::string& place, bool leave_out, std::vector<std::string>& left_out) {
  const auto goes = [&](const PythonValue& part, const std::string& here) {
    if (part.kind != Kind::foreign) return false;
    if (!leave_out)
      throw CheckpointError("MU226", in_quotes(here) + " is an object of '" + part.text +
                                         "', which is not understood: " + advice_about(part.text) +
                                         ", or leave such objects out");
    left_out.push_back(shown(here, kMostName));
    return true;
  };
  const auto below = [&](const std::string& name) { return place.empty() ? name : place + "/" + name; };
  std::erase_if(value.entries, [&](const auto& entry) { return goes(entry.second, below(key_name(entry.first))); });
  std::erase_if(value.items, [&](const auto& item) { return goes(item, below("?")); });
  each_part(value, [&](const std::string& name, PythonValue& part) {
    remove_foreign(part, below(name), leave_out, left_out);
  });
}

/// Only the tensors among a module's attributes are weights; tensors in lists may be the same ones again, as for LSTM.
void keep_weights(PythonValue& module, std::vector<std::string>& left_out) {
  std::erase_if(module.entries, [&](const auto& entry) {
    if (entry.second.kind == Kind::tensor) return false;
    left_out.push_back(shown(key_name(entry.first), kMostName));
    return true;
  });
}

void strip_names(PythonValue& value, const std::string& front) {
  if (front.empty()) return;
  for (auto& [key, part] : value.entries)
    if (key.kind == Kind::text && key.text.starts_with(front)) key.text.erase(0, front.size());
}

/// The value with only the tensors and storages that it uses, renumbered. `former_storages` gets the storages' numbers
/// in the content.
PythonFile pruned(const PythonFile& content, const PythonValue& value, std::vector<std::size_t>& former_storages) {
  PythonFile result;
  result.value = value;
  std::map<std::size_t, std::size_t> tensor_of, storage_of;
  each_tensor(result.value, [&](PythonValue& leaf) {
    const auto former = static_cast<std::size_t>(leaf.integer);
    const auto [number, fresh] = tensor_of.emplace(former, result.tensors.size());
    leaf.integer = static_cast<std::int64_t>(number->second);
    if (!fresh) return;
    PythonTensor& tensor = result.tensors.emplace_back(content.tensors[former]);
    const auto [place, fresh_storage] = storage_of.emplace(tensor.storage, result.storages.size());
    if (fresh_storage) {
      result.storages.push_back(content.storages[tensor.storage]);
      former_storages.push_back(tensor.storage);
    }
    tensor.storage = place->second;
  });
  return result;
}

void write_torch(const StoredContent& stored, const PythonValue& value, const fs::path& to,
                 const ConvertOptions& options, ConvertReport& report) {
  std::vector<std::size_t> storages;
  const PythonFile content = pruned(stored.content, value, storages);
  ContentBytes bytes(stored);
  AtomicFile file(to, options.durability);
  write_python_file(file, content, to.stem().string(),
                    [&](std::size_t storage) { return bytes.of_storage(storages[storage]); });
  file.publish();
  report.tensors = content.tensors.size();
  for (const PythonTensor& tensor : content.tensors) report.bytes += dense_bytes(tensor);
  report.files.push_back(to);
}

/// A tensor to be written to a safetensors file.
struct NamedContent {
  TensorSpec spec;
  const PythonTensor* tensor;
  std::uint64_t bytes;
};

TensorSpec spec_of(const std::string& name, const PythonTensor& tensor) {
  const DtypeInfo& row = dtype_info(tensor.type);
  if (!row.element)
    refuse_conversion("the tensor " + in_quotes(name) + " has dtype " + std::string(row.name) +
                      ", which safetensors files have not");
  TensorSpec spec{.name = name, .shape = tensor.shape, .type = *row.element};
  if (spec.type == ElementType::f4) {
    if (spec.shape.empty())
      refuse_conversion("the tensor " + in_quotes(name) + " has no dimension to count its pairs of 4-bit elements in");
    spec.shape.back() *= 2;
  }
  return spec;
}

/// Collects all tensors, in order, under names joined by ".". Other values are added to `left_out`, or refused if it is
/// null.
void collect(const StoredContent& stored, const PythonValue& value, const std::string& name,
             std::vector<NamedContent>& into, std::vector<std::string>* left_out) {
  if (name.size() > kMostName)
    refuse_conversion("the name " + in_quotes(name) + " has more than " + std::to_string(kMostName) + " bytes");
  if (value.kind == Kind::tensor && !name.empty()) {
    const PythonTensor& tensor = stored.content.tensors[static_cast<std::size_t>(value.integer)];
    into.push_back({spec_of(name, tensor), &tensor, dense_bytes(tensor)});
  } else if (value.kind == Kind::map || value.kind == Kind::list || value.kind == Kind::tuple) {
    each_part(value, [&](const std::string& more, const PythonValue& part) {
      collect(stored, part, name.empty() ? more : name + "." + more, into, left_out);
    });
  } else if (left_out) {
    left_out->push_back(shown(name, kMostName));
  } else {
    refuse_conversion("safetensors files hold named tensors only, and " + in_quotes(name) + " is " +
                      to_text(value, 60) + "; name the part to convert, or write a torch file");
  }
}

/// Keeps the alphabetically first of each set of tied tensors, as save_file does. Returns the dropped names, each with
/// the name that was kept.
Metadata drop_tied_content(std::vector<NamedContent>& tensors) {
  const auto place = [](const NamedContent& one) {
    const PythonTensor& tensor = *one.tensor;
    return std::tuple(tensor.storage, tensor.offset, static_cast<int>(tensor.type), tensor.shape, tensor.strides);
  };
  std::map<decltype(place(tensors.front())), std::string> first;
  for (const NamedContent& one : tensors)
    if (one.bytes > 0)
      if (const auto [found, fresh] = first.emplace(place(one), one.spec.name); !fresh)
        found->second = std::min(found->second, one.spec.name);
  Metadata dropped;
  std::erase_if(tensors, [&](const NamedContent& one) {
    if (one.bytes == 0 || first.at(place(one)) == one.spec.name) return false;
    dropped[one.spec.name] = first.at(place(one));
    return true;
  });
  return dropped;
}

void write_safetensors(const StoredContent& stored, const PythonValue& value, const fs::path& to,
                       const ConvertOptions& options, ConvertReport& report) {
  std::vector<NamedContent> tensors;
  collect(stored, value, "", tensors, options.leave_out ? &report.left_out : nullptr);
  if (tensors.empty() && stored.content.form == PythonFile::Form::archive)
    refuse_conversion(
        "the archive has no tensor by name: torch.jit.freeze and quantization put weights where no state dict has "
        "them; save the module before that");
  const Metadata tied = drop_tied_content(tensors);
  Metadata metadata = stored.metadata;
  std::erase_if(metadata, [&](const auto& entry) {
    return stored.content.value.find(entry.second) != nullptr;
  });  // ties are found again below
  metadata.emplace("format", "pt");
  report.tensors = tensors.size();
  for (const NamedContent& one : tensors) report.bytes += one.bytes;
  ContentBytes bytes(stored);
  const auto write_values = [&](AtomicFile& file, std::span<const std::size_t> order) {
    for (const std::size_t i : order) file.write(std::array{bytes.of_tensor(*tensors[i].tensor)});
  };
  std::vector<TensorSpec> specs;
  for (const NamedContent& one : tensors) specs.push_back(one.spec);
  if (report.to == WeightForm::folder) {
    report.files =
        write_weight_set(to, specs, metadata, tied, options.max_shard_size.bytes(), options.durability, write_values);
    if (report.files.size() > 1) report.files.push_back(to / kWeightIndexName);
    return;
  }
  metadata.insert(tied.begin(), tied.end());
  write_weight_file(to, specs, metadata, options.durability, write_values)->publish();
  report.files.push_back(to);
}

PythonValue in_lightnings_layout(PythonValue weights, LightningParts parts) {
  if (!is_state_dict(weights))
    refuse_conversion(
        "a file of Lightning's needs the weights of a model, by their names; say where they are by --key");
  return lightning_value(std::move(weights), std::move(parts));
}

}  // namespace

std::string_view name_of(WeightForm form) { return kForms.at(static_cast<std::size_t>(form)).second; }

WeightForm weight_form(std::string_view name) {
  for (const auto& [form, known] : kForms)
    if (known == name) return form;
  throw UsageError("MU230", "\"" + std::string(name) +
                                "\" is not a form of weights; there are: torch, safetensors, folder, lightning");
}

ConvertReport convert(const fs::path& from, const fs::path& to, const ConvertOptions& given) {
  ConvertOptions options = given;
  ConvertReport report;
  report.to = options.to ? *options.to : form_of_name(to);
  StoredContent stored = open_content(from);
  if (stored.is_checkpoint) check_checkpoint_values(from);
  report.from = stored.kind;
  // A TorchScript module's attributes are among its weights, and Python's state_dict has only the weights.
  const bool is_archive = stored.content.form == PythonFile::Form::archive;
  options.leave_out |= is_archive;
  // A Trainer's checkpoint goes to a file with Lightning's extension.
  if (!options.to && options.part.empty() && to.extension() == ".ckpt" && is_trainers(stored))
    report.to = WeightForm::lightning;
  auto parts = report.to == WeightForm::lightning ? lightning_parts(stored) : LightningParts();
  if (stored.is_checkpoint && options.part.empty())
    stored.content.value = exchanged_value(stored, report.to, options.model);
  const bool may_search =
      options.part.empty() && report.to != WeightForm::torch && !stored.is_checkpoint && !is_archive;
  const std::string place =
      may_search ? find_weights(stored.content.value, from.string(), report.left_out) : options.part;
  PythonValue* part = find_part(stored.content.value, place);
  if (!part)
    refuse_conversion(
        from.string() + " has no part " + in_quotes(place) + "; it has: " +
        listed(
            stored.content.value.entries, [](const auto& entry) { return shown(key_name(entry.first)); }, 400));
  PythonValue value = *part;
  const bool is_module = value.kind == Kind::map && !value.text.empty();
  if (is_module && report.to != WeightForm::torch) keep_weights(value, report.left_out);
  remove_foreign(value, place, options.leave_out, report.left_out);
  strip_names(value, options.strip);
  if (value.kind == Kind::foreign) refuse_conversion("it is an object of '" + value.text + "'");
  if (report.to == WeightForm::lightning) value = in_lightnings_layout(std::move(value), std::move(parts));
  if (report.to == WeightForm::torch || report.to == WeightForm::lightning)
    write_torch(stored, value, to, options, report);
  else write_safetensors(stored, value, to, options, report);
  return report;
}

}  // namespace muster::format
