#include <string>

#include "base/spelling.h"
#include "strategy/names.h"
#include "strategy/sharded_fields.h"

namespace muster::strategy {
namespace {

using options::Found;

constexpr char kStaysThere[] =
    "parameters and gradients stay on the device; shard them over more ranks, or over smaller batches";
constexpr char kOneGroup[] = "both directions go over the same ranks; shard_group_size cuts them into groups";

template <const char* kInstead>
void refused_if_on(const Found& found, const FieldTexts&, FieldTexts&) {
  refuse_unless_off(found, kInstead);
}
template <const char* kInstead>
void refused(const Found& found, const FieldTexts&, FieldTexts&) {
  refuse_field(found, kInstead);
}

/// Muster's name of a dtype: "f16" for "torch.float16".
std::string dtype_of(const Found& found) {
  auto word = lower_case(found.text);
  if (word.starts_with("torch.")) word.erase(0, 6);
  if (word == "float16" || word == "half" || word == "fp16") return "f16";
  if (word == "bfloat16") return "bf16";
  if (word == "float32" || word == "float" || word == "fp32") return "f32";
  return word;
}

void take_compute_dtype(const Found& found, const FieldTexts&, FieldTexts& ours) {
  ours["param_dtype"] = {dtype_of(found), found.place};
}
void take_fp32_sums(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (read_switch(found)) ours["reduce_dtype"] = {"f32", found.place};
}
void take_fp16_sums(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (read_switch(found)) ours["reduce_dtype"] = {"f16", found.place};
}
void take_inputs_in_fp32(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (read_switch(found)) ours["cast_forward_inputs"] = {"false", found.place};
}
void take_predivide(const Found& found, const FieldTexts&, FieldTexts& ours) { ours["predivide_factor"] = found; }

}  // namespace

std::span<const ForeignField> fairscale_fields() {
  static constexpr ForeignField kFields[] = {
      {"auto_refresh_trainable", "", "no effect", no_effect},
      {"broadcast_model_buffers", "", "no effect: buffers get the main process's values after each step", no_effect},
      {"bucket_cap_mb", "", "no effect: a unit's gradients are reduced together", no_effect},
      {"clear_autocast_cache", "", "no effect: always so", no_effect},
      {"compute_device", "", "no effect: each rank has one device", no_effect},
      {"compute_dtype", "", "param_dtype", take_compute_dtype},
      {"disable_reshard_on_root", "", "no effect: the root's parameters stay between forward and backward", no_effect},
      {"flatten_parameters", "", "no effect: always so", no_effect},
      {"force_input_to_fp32", "", "where true: cast_forward_inputs=false", take_inputs_in_fp32},
      {"fp32_reduce_scatter", "", "where true: reduce_dtype=f32", take_fp32_sums},
      {"gradient_predivide_factor", "", "predivide_factor", take_predivide},
      {"move_grads_to_cpu", "", "refused where true", refused_if_on<kStaysThere>},
      {"move_params_to_cpu", "", "refused where true", refused_if_on<kStaysThere>},
      {"no_broadcast_optim_state", "", "no effect: each rank saves and loads its own part", no_effect},
      {"process_group_reduce_scatter", "", "refused", refused<kOneGroup>},
      {"reduce_buffer_size", "", "no effect: a unit's gradients are reduced together", no_effect},
      {"reduce_fp16", "", "where true: reduce_dtype=f16", take_fp16_sums},
      {"state_dict_device", "", "no effect: files are written from where the parameters are", no_effect},
      {"state_dict_on_rank_0_only", "", "no effect: save_model() writes once", no_effect},
      {"sync_models_at_startup", "", "no effect: always so", no_effect},
      {"verbose", "", "no effect: plan() says everything", no_effect},
      {"warn_on_trainable_params_changed", "", "no effect", no_effect},
  };
  return kFields;
}

}  // namespace muster::strategy
