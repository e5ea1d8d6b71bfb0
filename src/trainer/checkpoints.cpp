#include "checkpoints.h"

#include <c10/util/ScopeExit.h>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/python_content.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/trainer/load_from_checkpoint.h"
#include "optimization.h"
#include "run.h"
#include "run_loaders.h"
#include "run_log.h"
#include "watchers.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrainerEntry = "trainer";  // entry in which a checkpoint stores the position of training

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

/// The N of hpc_ckpt_N.ckpt; 0 for another name.
int64_t hpc_number(const fs::path& folder) {
  static constexpr std::string_view kStart = "hpc_ckpt_";
  const auto name = folder.stem().string();
  if (folder.extension() != ".ckpt" || !name.starts_with(kStart)) return 0;
  return parse_number<int64_t>(std::string_view(name).substr(kStart.size())).value_or(0);
}

/// The checkpoint that a signal caused last; empty if the folder has none.
fs::path newest_hpc_checkpoint(const fs::path& folder) {
  fs::path newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (hpc_number(entry.path()) > hpc_number(newest)) newest = entry.path();
  return newest;
}

/// The position of training in the checkpoint; empty if another program wrote it.
State trainer_entry(const State& shared) {
  const auto* entry = shared.find(kTrainerEntry);
  return entry ? *entry : State();
}

/// Checks the key again: callbacks whose state was empty when the run began may turn out to have equal keys.
void add_callback(State& callbacks, const Callback& callback, State own) {
  if (callbacks.find(callback.state_key())) refuse_equal_keys(callback);
  callbacks.set(callback.state_key(), std::move(own));
}

/// The state at this path of names; nullptr if there is none.
const State* inside(const State& state, std::initializer_list<std::string_view> names) {
  const State* found = &state;
  for (const auto name : names) {
    found = found->find(name);
    if (!found) return nullptr;
  }
  return found;
}

/// Whether the checkpoint was saved with weights_only.
bool holds_weights_only(const fs::path& folder) {
  static constexpr std::array kNames{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                     "pytorch_model.bin.index.json"};
  return std::ranges::any_of(kNames, [&](const char* name) { return fs::exists(folder / name); });
}

/// Whether the checkpoint is a file; Muster's checkpoints are folders.
bool is_lightning_file(const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::is_regular_file(checkpoint, ignored);
}

/// The parts of a checkpoint of Lightning in Python that are used.
struct LightningFile {
  int64_t epochs = 0;  // completed ones
  int64_t global_step = 0;
  State hyper_parameters = {};                     // empty if there are none
  std::vector<checkpoint::LeftOut> left_out = {};  // hyper-parameters that could not be read
};

/// Reads the file without executing anything in it. Unreadable parts are left out, except in weights.
/// Throws: CheckpointError (MU466) for another file of torch.save; as load_python().
LightningFile read_lightning_file(const fs::path& checkpoint) {
  const auto content = muster::checkpoint::read_python(checkpoint);
  const auto& saved = content.value;
  const auto* step = saved.find("global_step");
  if (!saved.find("state_dict") || !step)
    throw CheckpointError("MU466",
                          checkpoint.string() +
                              " is not a checkpoint of Lightning's: it has no state_dict and global_step; load "
                              "other weights by load_model()");
  LightningFile file{.global_step = step->integer()};
  if (const auto* options = saved.find("hyper_parameters")) file.hyper_parameters = *options;
  if (const auto* epochs = inside(saved, {"loops", "fit_loop", "epoch_progress", "current", "processed"}))
    file.epochs = epochs->integer();
  for (const auto& part : content.left_out)
    if (part.place.substr(0, part.place.find('/')) == "hyper_parameters") file.left_out.push_back(part);
  return file;
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

void refuse_equal_keys(const Callback& callback) {
  throw UsageError("MU452", "two callbacks save their state as \"" + callback.state_key() +
                                "\", and only one could be loaded again; override state_key() so that they differ, or "
                                "leave one out");
}

State Checkpoints::trainer_state() {
  run_.stop.agree();
  run_.preparation->wait_for_steps();
  const auto& now = run_.progress;
  const auto& window = optimization_.window();
  State::List steps, plateau_steps;
  for (const auto& updates : run_.preparation->updates) {
    steps.emplace_back(updates->steps);
    plateau_steps.emplace_back(updates->plateau_steps);
  }
  State state = State::Map{{"batches", now.epoch_done ? 0 : now.batches},
                           {"callbacks", State::Map{}},
                           {"epoch", now.epoch + (now.epoch_done ? 1 : 0)},
                           {"global_step", now.global_step},
                           {"interrupted", run_.inside_batch()},
                           {"last_batch", now.last_batch},
                           {"loaders", loaders_.saved_kinds()},
                           {"logger", log_.experiment.state_dict()},
                           {"modes", run_.modes()},
                           {"plateau_steps", std::move(plateau_steps)},
                           {"point", kSavePoints[static_cast<std::size_t>(now.point)]},
                           {"ranks", states_of_ranks()},
                           {"saver", watchers_.current_key()},
                           {"should_stop", run_.stop.agreed()},
                           {"steps", std::move(steps)},
                           {"total_batches", now.total_batches},
                           {"validation", State::List{now.validation.dataloader_idx, now.validation.batch_idx}},
                           {"window_begins", window.begins},
                           {"window_has_loss", window.has_loss}};
  if (run_.options.max_time) state.set("elapsed_ms", static_cast<int64_t>(run_.clock.elapsed().count()));
  if (const auto& own = run_.module().hyperparameters(); !own.empty()) state.set("hyper_parameters", own);
  for (const auto& callback : run_.hooks.callbacks())
    if (auto own = callback->state_dict(); !own.empty()) add_callback(state.at("callbacks"), *callback, std::move(own));
  if (const auto& data = run_.inputs().data)
    if (auto own = data->state_dict(); !own.empty()) state.set("data_module", std::move(own));
  run_.hooks.callbacks(Hook::on_save_checkpoint, &Callback::on_save_checkpoint, state);
  run_.hooks.module(Hook::on_save_checkpoint, &TrainerModule::on_save_checkpoint, state);
  return state;
}

void Checkpoints::save(const fs::path& folder, const SaveCheckpointOptions& how) {
  const auto& model = run_.preparation->required_model("save_checkpoint()");
  if (how.weights_only) return run_.runtime.save_model(model, folder);
  auto hook = run_.runtime.register_save_state_pre_hook(
      [entry = trainer_state()](State& state, const fs::path&) { state.set(kTrainerEntry, entry); });
  const auto remove = c10::make_scope_exit([&] { hook.remove(); });
  run_.runtime.save_state(folder, {.asynchronous = how.asynchronous});
}

/// Loads a checkpoint of an Accelerator or Fabric program, which has no position of a Trainer's loops.
void Checkpoints::load_foreign() {
  if (run_.runtime.is_main())
    log::info(resumed_->folder().string(),
              " was not written by a Trainer: weights, optimizers and schedules are loaded, and epoch 0 begins");
  resumed_->load_models();
  optimization_.set_up();
  resumed_->load_optimizers();
  end_resume();
}

/// Loads weights and counters of a checkpoint of Lightning in Python; an epoch that it has begun starts over.
void Checkpoints::load_lightning(const fs::path& file) {
  const auto saved = read_lightning_file(file);
  if (run_.runtime.is_main())
    log::info(file.string(),
              " was written by Python: weights and counters are loaded, and optimizers start from scratch");
  run_.runtime.load_model(run_.preparation->model, file);
  run_.progress = {.epoch = saved.epochs, .global_step = saved.global_step};
  optimization_.set_up();
}

void Checkpoints::load_for_fit(const fs::path& folder) {
  if (is_lightning_file(folder)) return load_lightning(folder);
  if (holds_weights_only(folder))
    throw UsageError("MU464",
                     folder.string() +
                         " holds weights only, so training cannot be resumed from it: name another checkpoint, "
                         "or load the weights by load_model() and start from scratch");
  resumed_.emplace(run_.runtime, folder);
  loaders_.begin_resume();
  State state = trainer_entry(resumed_->shared());
  if (state.empty()) return load_foreign();
  run_.hooks.module(Hook::on_load_checkpoint, &TrainerModule::on_load_checkpoint, state);
  resumed_->load_models();
  run_.hooks.callbacks(Hook::on_load_checkpoint, &Callback::on_load_checkpoint, state);
  for (const auto& callback : run_.hooks.callbacks())
    if (const auto* own = state.at("callbacks").find(callback->state_key())) callback->load_state_dict(*own);
  if (const auto& data = run_.inputs().data)
    if (const auto* own = state.find("data_module")) data->load_state_dict(*own);
  load_position(state);
  if (const auto* elapsed = state.find("elapsed_ms")) run_.clock.begin(std::chrono::milliseconds(elapsed->integer()));
  if (const auto* own = state.find("logger")) log_.experiment.load_state_dict(*own);
  optimization_.set_window(state.at("window_begins").boolean(), state.at("window_has_loss").boolean());
  optimization_.set_up();
  resumed_->load_optimizers();
  const auto& steps = state.at("steps").list();
  const auto* plateau_steps = state.find("plateau_steps");
  auto& updates = run_.preparation->updates;
  for (std::size_t i = 0; i < std::min(steps.size(), updates.size()); ++i) {
    updates[i]->steps = steps[i].integer();
    if (plateau_steps) updates[i]->plateau_steps = plateau_steps->list().at(i).integer();
  }
}

void Checkpoints::load_position(const State& state) {
  const auto& validation = state.at("validation").list();
  const auto point = std::ranges::find(kSavePoints, state.at("point").text()) - kSavePoints.begin();
  run_.progress = {
      .batches = state.at("batches").integer(),
      .epoch = state.at("epoch").integer(),
      .global_step = state.at("global_step").integer(),
      .last_batch = state.at("last_batch").boolean(),
      .point = static_cast<SavePoint>(static_cast<std::size_t>(point) % kSavePoints.size()),
      .total_batches = state.at("total_batches").integer(),
      .validation = {.batch_idx = validation.at(1).integer(), .dataloader_idx = validation.at(0).integer()}};
  run_.stop.set(state.at("should_stop").boolean());
  watchers_.resume(state.at("saver").text());
  resumed_ranks_ = state.at("ranks");
  loaders_.set_resumed_kinds(state.at("loaders"));
  if (run_.progress.batches > 0) run_.load_modes(state.at("modes").text());
  if (state.at("interrupted").boolean() && run_.runtime.is_main())
    log::warning(resumed_->folder().string(),
                 " was written inside of a batch, which cannot be continued: training goes on with the next one; "
                 "ckpt_path = \"last\" chooses the newest that was written between batches");
}

void Checkpoints::load_progress() {
  resumed_->load_progress(/*fewer_loaders=*/true);
  const auto& ranks = resumed_ranks_.list();
  const bool other_world = std::ssize(ranks) != run_.runtime.world_size();
  const bool again = !optimization_.window_begins() && (other_world || resumed_->shared().at("window").find("again"));
  const auto& own = log_.load_states_of_ranks(ranks, again);
  optimization_.load_window_begin(own.find("window"));
  if (again) optimization_.go_back_to_window_begin();
  loaders_.count_batches_done();
}

void Checkpoints::end_resume() {
  resumed_.reset();
  loaders_.end_resume();
}

void Checkpoints::load_weights(const fs::path& folder) {
  if (is_lightning_file(folder) || holds_weights_only(folder)) {
    run_.runtime.load_model(run_.preparation->model, folder);
    return;
  }
  OpenedCheckpoint checkpoint(run_.runtime, folder);
  State state = trainer_entry(checkpoint.shared());
  if (state.empty()) return checkpoint.load_models();
  run_.hooks.module(Hook::on_load_checkpoint, &TrainerModule::on_load_checkpoint, state);
  checkpoint.load_models();
  run_.hooks.callbacks(Hook::on_load_checkpoint, &Callback::on_load_checkpoint, state);
}

State Checkpoints::states_of_ranks() {
  const auto& window = optimization_.window();
  auto own = log_.state_of_rank();
  if (!window.begins && window.begin.book) own.set("window", window.begin.state_dict());
  State::List all = run_.runtime.gather_object(std::vector{std::move(own)});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (identical(all[rank], all[0])) all[rank] = State();
  return all;
}

fs::path Checkpoints::save_numbered() {
  const auto& root = run_.options.default_root_dir;
  const auto number = run_.runtime.broadcast_object(hpc_number(newest_hpc_checkpoint(root)) + 1);
  const auto folder = root / ("hpc_ckpt_" + std::to_string(number) + ".ckpt");
  save(folder, {});
  return folder;
}

/// The newest checkpoint that was not written before `since`.
fs::path Checkpoints::newest(fs::file_time_type since) const {
  static constexpr int kDepth = 3;  // levels of folders that are searched
  auto folders = watchers_.folders();
  folders.insert(run_.options.default_root_dir / "checkpoints");
  std::vector<Candidate> all;
  add_candidates(run_.options.default_root_dir, 0, all);
  for (const auto& folder : folders) add_candidates(folder, kDepth, all);
  std::erase_if(all, [&](const Candidate& one) { return one.written < since; });
  return newest_of(run_.runtime, std::move(all));
}

fs::path Checkpoints::after_restart() {
  const auto start = runtime::start_of_restarted_job(run_.runtime);
  if (std::exchange(has_fitted_, true) || !start || run_.options.fast_dev_run > 0) return {};
  fs::path found;
  // Ignore what an earlier job has left in the folder.
  if (run_.runtime.is_main()) found = newest(std::chrono::file_clock::from_sys(*start));
  found = run_.runtime.broadcast_object(found.string());
  if (run_.runtime.is_main() && found.empty())
    log::warning("this job was started again before it had saved a checkpoint: training starts from scratch");
  else if (run_.runtime.is_main()) log::info("this job was started again: training goes on from ", found.string());
  return found;
}

fs::path Checkpoints::resolved(const std::string& ckpt_path, bool required) const {
  if (ckpt_path == "none") return {};
  if (ckpt_path != "best" && ckpt_path != "last" && ckpt_path != "hpc") return ckpt_path;
  fs::path found;
  if (ckpt_path == "best") {
    found = watchers_.best_model_path();
  } else if (run_.runtime.is_main()) {
    found =
        ckpt_path == "last" ? newest(fs::file_time_type::min()) : newest_hpc_checkpoint(run_.options.default_root_dir);
  }
  found = run_.runtime.broadcast_object(found.string());
  if (!found.empty()) return found;
  if (required || ckpt_path == "best")
    throw UsageError("MU450", "ckpt_path is \"" + ckpt_path +
                                  "\", and no such checkpoint of this Trainer is there; "
                                  "name the folder of a checkpoint");
  if (run_.runtime.is_main())
    log::warning("ckpt_path is \"", ckpt_path, "\", and there is no such checkpoint: training starts from scratch");
  return {};
}

State saved_hyperparameters(const std::filesystem::path& checkpoint) {
  if (is_lightning_file(checkpoint)) {
    auto saved = read_lightning_file(checkpoint);
    if (!saved.left_out.empty())
      log::warning(checkpoint.string(), ": left out ", muster::checkpoint::listed(saved.left_out));
    return std::move(saved.hyper_parameters);
  }
  if (holds_weights_only(checkpoint)) return {};
  const auto entry = Checkpoint(checkpoint, {.check = CheckpointCheck::as_read}).shared_entry(kTrainerEntry);
  const auto* saved = entry ? entry->find("hyper_parameters") : nullptr;
  return saved ? *saved : State();
}

State hyperparameters_in(const std::filesystem::path& checkpoint) {
  if (auto saved = saved_hyperparameters(checkpoint); !saved.empty()) return saved;
  throw CheckpointError("MU465", checkpoint.string() +
                                     " holds no hyper-parameters: call save_hyperparameters(options) in the module's "
                                     "constructor before it is trained, or make the module yourself and load its "
                                     "weights");
}

void load_weights(TrainerModule& module, const std::filesystem::path& checkpoint) {
  module.configure_model();
  const bool bare = is_lightning_file(checkpoint) || holds_weights_only(checkpoint);
  load_state_dict(module, bare ? runtime::bare_weights(checkpoint, module) : runtime::checkpoint_weights(checkpoint));
}

}  // namespace muster::trainer
