#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "core.h"
#include "muster/base/error.h"
#include "muster/runtime/resume.h"
#include "muster/trainer/model_checkpoint.h"
#include "muster/trainer/on_exception_checkpoint.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  fs::path folder;
  fs::file_time_type written;
};

/// `depth`: how many levels of folders to search, since names of metrics may contain slashes.
void add_candidates(const fs::path& folder, int depth, std::vector<Candidate>& all) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!entry.is_directory(ignored)) continue;
    if (entry.path().extension() == ".ckpt") all.push_back({entry.path(), fs::last_write_time(entry.path(), ignored)});
    else if (depth > 0 && !entry.is_symlink(ignored)) add_candidates(entry.path(), depth - 1, all);
  }
}

/// How far training was, for a checkpoint from which it can resume without repeating part of a batch; nullopt for
/// others.
std::optional<std::tuple<int64_t, int64_t, std::size_t>> whole_position(const Runtime& runtime,
                                                                        const fs::path& folder) {
  try {
    const auto entry = checkpoint_entry(runtime, folder, kTrainerEntry);
    if (!entry || entry->at("interrupted").boolean()) return std::nullopt;
    const auto point = std::ranges::find(kSavePoints, entry->at("point").text()) - kSavePoints.begin();
    return std::tuple(entry->at("total_batches").integer(), entry->at("epoch").integer(),
                      static_cast<std::size_t>(point));
  } catch (const Error&) {
    return std::nullopt;  // written by another program, or incomplete
  }
}

/// The checkpoint that was written last; among equal time stamps, the one that is farthest in training.
fs::path newest_of(const Runtime& runtime, std::vector<Candidate> all) {
  std::ranges::sort(all, std::greater(), &Candidate::written);
  fs::path newest;
  std::optional<std::tuple<int64_t, int64_t, std::size_t>> farthest;
  for (std::size_t i = 0; i < all.size() && (!farthest || all[i].written == all[i - 1].written); ++i) {
    const auto position = whole_position(runtime, all[i].folder);
    if (position > farthest) farthest = position, newest = all[i].folder;
  }
  return newest;
}

}  // namespace

bool is_interrupted_checkpoint(const Runtime& runtime, const fs::path& folder) {
  try {
    const auto entry = checkpoint_entry(runtime, folder, kTrainerEntry);
    return entry && entry->at("interrupted").boolean();
  } catch (const Error&) {
    return false;
  }
}

bool holds_weights_only(const fs::path& folder) {
  static constexpr std::array kNames{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                     "pytorch_model.bin.index.json"};
  return std::ranges::any_of(kNames, [&](const char* name) { return fs::exists(folder / name); });
}

/// The newest checkpoint that was not written before `since`.
fs::path Core::newest_checkpoint(fs::file_time_type since) const {
  static constexpr int kDepth = 3;  // levels of folders that are searched
  std::vector<fs::path> folders = {options.default_root_dir / "checkpoints"};
  for (const auto& callback : hooks.callbacks())
    if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get())) folders.push_back(saver->folder_);
    else if (const auto* rescue = dynamic_cast<const OnExceptionCheckpoint*>(callback.get()))
      folders.push_back(rescue->ckpt_path().parent_path());
  std::ranges::sort(folders);
  folders.erase(std::ranges::unique(folders).begin(), folders.end());
  std::vector<Candidate> all;
  add_candidates(options.default_root_dir, 0, all);
  for (const auto& folder : folders) add_candidates(folder, kDepth, all);
  std::erase_if(all, [&](const Candidate& one) { return one.written < since; });
  return newest_of(runtime, std::move(all));
}

fs::path Core::checkpoint_after_restart() {
  const auto start = runtime::start_of_restarted_job(runtime);
  if (std::exchange(has_fitted_, true) || !start || options.fast_dev_run > 0) return {};
  fs::path found;
  // Ignore what an earlier job has left in the folder.
  if (runtime.is_main()) found = newest_checkpoint(std::chrono::file_clock::from_sys(*start));
  found = runtime.broadcast_object(found.string());
  if (runtime.is_main() && found.empty())
    log::warning("this job was started again before it had saved a checkpoint: training starts anew");
  else if (runtime.is_main()) log::info("this job was started again: training goes on from ", found.string());
  return found;
}

fs::path Core::resolved(const std::string& ckpt_path, bool required) const {
  if (ckpt_path == "none") return {};
  if (ckpt_path != "best" && ckpt_path != "last" && ckpt_path != "hpc") return ckpt_path;
  fs::path found;
  if (ckpt_path == "best") {
    for (const auto& callback : hooks.callbacks())
      if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get()); saver && found.empty())
        found = saver->best_model_path();
  } else if (runtime.is_main()) {
    found = ckpt_path == "last" ? newest_checkpoint(fs::file_time_type::min())
                                : newest_hpc_checkpoint(options.default_root_dir);
  }
  found = runtime.broadcast_object(found.string());
  if (!found.empty()) return found;
  if (required || ckpt_path == "best")
    throw UsageError("MU450", "ckpt_path is \"" + ckpt_path +
                                  "\", and no such checkpoint of this Trainer is there; "
                                  "name the folder of a checkpoint");
  if (runtime.is_main())
    log::warning("ckpt_path is \"", ckpt_path, "\", and there is no such checkpoint: training starts anew");
  return {};
}

}  // namespace muster::trainer
