#include "lightning_file.h"

#include <initializer_list>
#include <string_view>
#include <system_error>

#include "muster/base/error.h"

namespace muster::trainer {
namespace {

/// The state at this path of names; nullptr if there is none.
const State* inside(const State& state, std::initializer_list<std::string_view> names) {
  const State* found = &state;
  for (const auto name : names) {
    found = found->find(name);
    if (!found) return nullptr;
  }
  return found;
}

}  // namespace

bool is_lightning_file(const std::filesystem::path& checkpoint) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(checkpoint, ignored);
}

LightningFile read_lightning_file(const std::filesystem::path& checkpoint) {
  const auto content = muster::checkpoint::read_python(checkpoint);
  const auto& saved = content.value;
  const auto* step = saved.find("global_step");
  if (!saved.find("state_dict") || !step)
    throw CheckpointError("MU466", checkpoint.string() +
                                       " is no checkpoint of Lightning's: it has no state_dict and global_step; load "
                                       "other weights by load_model()");
  LightningFile file{.global_step = step->integer()};
  if (const auto* options = saved.find("hyper_parameters")) file.hyper_parameters = *options;
  if (const auto* epochs = inside(saved, {"loops", "fit_loop", "epoch_progress", "current", "processed"}))
    file.epochs = epochs->integer();
  for (const auto& part : content.left_out)
    if (part.place.substr(0, part.place.find('/')) == "hyper_parameters") file.left_out.push_back(part);
  return file;
}

}  // namespace muster::trainer
