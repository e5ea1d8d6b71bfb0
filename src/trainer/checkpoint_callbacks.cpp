#include <cmath>

#include "base/log.h"
#include "checkpoints.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"
#include "options/trainer_fields.h"
#include "watchers.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnd = ".ckpt";

/// A value formatted for a field such as "{loss:.2f}" or "{epoch:02d}"; `format` is the part after the colon.
std::string field_text(double value, const std::string& format) {
  const bool plain = format.empty() && value == std::floor(value) && std::abs(value) < 1e15;
  char kind = format.empty() ? (plain ? 'd' : 'g') : format.back();
  const auto body = format.substr(0, format.empty() ? 0 : format.size() - 1);
  if (std::string_view("dfegFEG").find(kind) == std::string_view::npos || body.size() > 8 ||
      body.find_first_not_of("0123456789.+-") != body.npos)
    throw ConfigError("MU451",
                      "\"" + format +
                          "\" in the file name of a ModelCheckpoint is not a number format; write {name:.2f} or "
                          "{name:02d}");
  if (kind == 'd' && !(std::abs(value) < 9e18)) kind = 'g';  // NaN and infinity are not integers
  std::array<char, 512> text{};
  if (kind == 'd') std::snprintf(text.data(), text.size(), ("%" + body + "lld").c_str(), static_cast<long long>(value));
  else std::snprintf(text.data(), text.size(), ("%" + body + kind).c_str(), value);
  return text.data();
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  trainer::Problems problems;
  problems.least("every_n_epochs", options_.every_n_epochs, 0);
  problems.least("every_n_train_steps", options_.every_n_train_steps, 0);
  problems.add_if(options_.train_time_interval && options_.train_time_interval->count() <= 0,
                  "train_time_interval is not positive");
  const int rules = (options_.every_n_epochs.value_or(0) > 0) + (options_.every_n_train_steps.value_or(0) > 0) +
                    options_.train_time_interval.has_value();
  problems.add_if(rules > 1, "every_n_epochs, every_n_train_steps and train_time_interval exclude each other");
  problems.least("save_top_k", options_.save_top_k, -1);
  problems.add_if(options_.save_top_k > 1 && options_.monitor.empty(),
                  formatted("save_top_k is {} and monitor is empty, so nothing says which are best; name a metric, or "
                            "give -1 for all",
                            options_.save_top_k));
  trainer::raise_for("ModelCheckpoint", problems);
}

std::string ModelCheckpoint::state_key() const {
  const auto shown = [](const std::optional<int64_t>& value) { return value ? std::to_string(*value) : "unset"; };
  return "ModelCheckpoint{monitor=" + options_.monitor + ", mode=" + std::string(options_.mode.text()) +
         ", every_n_train_steps=" + shown(options_.every_n_train_steps) +
         ", every_n_epochs=" + shown(options_.every_n_epochs) + ", train_time_interval=" +
         (options_.train_time_interval ? formatted("{} us", options_.train_time_interval->count()) : "unset") + "}";
}

State ModelCheckpoint::state_dict() const {
  State kept = State::Map{};
  for (const auto& [path, score] : kept_) kept.set(path.string(), score);
  return State::Map{{"best_k_models", std::move(kept)},
                    {"best_model_path", best_path_.string()},
                    {"best_model_score", best_score_ ? State(*best_score_) : State()},
                    {"dirpath", folder_.string()},
                    {"due", due_},
                    {"last_due", last_due_},
                    {"last_model_path", last_path_.string()},
                    {"last_step", last_step_},
                    {"replaced", replaced_.string()}};
}

void ModelCheckpoint::load_state_dict(const State& state) {
  best_path_ = state.at("best_model_path").text();
  if (const auto& score = state.at("best_model_score"); !score.empty()) best_score_ = score.number();
  last_step_ = state.at("last_step").integer();
  if (state.at("dirpath").text() != folder_.string()) {
    log::warning(
        "a ModelCheckpoint writes to another folder than the one of the checkpoint that is resumed: it "
        "remembers the best one, and keeps and removes only its own");
    return;
  }
  due_ = state.at("due").boolean();
  last_due_ = state.at("last_due").boolean();
  replaced_ = state.at("replaced").text();
  last_path_ = state.at("last_model_path").text();
  kept_.clear();
  for (const auto& [path, score] : state.at("best_k_models").map()) kept_[path] = score.number();
}

void ModelCheckpoint::setup(Trainer& trainer, TrainerModule&, Stage) {
  folder_ = options_.dirpath.empty() ? trainer.options().default_root_dir / "checkpoints" : options_.dirpath;
}

bool ModelCheckpoint::saves_at_train_epoch_end(const Trainer& trainer) const {
  return options_.save_on_train_epoch_end.value_or(trainer.validates_at_epoch_end_only());
}

void ModelCheckpoint::on_train_start(Trainer&, TrainerModule&) {
  saved_at_ = Clock::now();
  validated_ = false;
}

void ModelCheckpoint::on_train_end(Trainer& trainer, TrainerModule&) {
  // Does not count as a save: a run that continues from here must end as an uninterrupted one.
  if (options_.save_last && last_step_ == 0 && trainer.global_step() > 0 && trainer.options().fast_dev_run == 0) {
    name_last(trainer);
    trainer.save_checkpoint(last_path_, how());
  }
  finish_asynchronous_save(trainer);
}

void ModelCheckpoint::finish_asynchronous_save(Trainer& trainer) {
  trainer.wait_for_save();
  remove_replaced(trainer);
}

void ModelCheckpoint::on_exception(Trainer& trainer, TrainerModule&, const std::exception_ptr&) {
  if (!options_.save_on_exception || !trainer.fitting() || trainer.global_step() == last_step_) return;
  const auto path = free_name(trainer, format_checkpoint_name(metrics_of(trainer)), std::nullopt);
  trainer.save_checkpoint(path, how());
}

/// True if no validation has logged the metric yet, or if the validation after this batch logs a newer value.
bool ModelCheckpoint::waits_for_metric(const Trainer& trainer) const {
  if (options_.monitor.empty()) return false;
  return (!saves_at_train_epoch_end(trainer) && trainer.validates_after_last_batch()) ||
         !trainer::value_on_main_rank(trainer.runtime(), metrics_of(trainer), options_.monitor);
}

void ModelCheckpoint::after_batch(Trainer& trainer) {
  const auto every = options_.every_n_train_steps.value_or(0);
  if (every == 0 || !trainer.may_be_step(every)) return;
  const auto step = trainer.global_step();
  if (step % every != 0 || step == last_step_) return;
  save_now_or_when_due(trainer);
}

void ModelCheckpoint::save_now_or_when_due(Trainer& trainer) {
  due_ = waits_for_metric(trainer);
  if (!due_) save(trainer, LastRule::always);
}

bool ModelCheckpoint::time_is_up() const {
  return options_.train_time_interval && Clock::now() - saved_at_ >= *options_.train_time_interval;
}

void ModelCheckpoint::save_by_time(Trainer& trainer) {
  if (!options_.train_time_interval || !trainer.runtime().broadcast_object(time_is_up())) return;
  saved_at_ = Clock::now();
  save_now_or_when_due(trainer);
}

void ModelCheckpoint::save_after_epoch(Trainer& trainer) {
  const bool otherwise = options_.every_n_train_steps || options_.train_time_interval;
  const auto every = options_.every_n_epochs.value_or(otherwise ? 0 : 1);
  if (every > 0 && (trainer.current_epoch() + 1) % every == 0) save(trainer, LastRule::with_another);
}

void ModelCheckpoint::on_train_epoch_end(Trainer& trainer, TrainerModule&) {
  if (options_.every_n_train_steps.value_or(0) > 0 || !saves_at_train_epoch_end(trainer)) return;
  save_after_epoch(trainer);
}

void ModelCheckpoint::on_validation_end(Trainer& trainer, TrainerModule&) {
  if (!trainer.fitting()) return;
  validated_ = true;
  if (std::exchange(due_, false)) return save(trainer, LastRule::always);
  if (options_.every_n_train_steps.value_or(0) > 0 || saves_at_train_epoch_end(trainer)) return;
  save_after_epoch(trainer);
}

std::map<fs::path, double>::iterator ModelCheckpoint::worst() {
  return std::ranges::max_element(
      kept_, [&](const auto& a, const auto& b) { return trainer::is_better(a.second, b.second, options_.mode); });
}

Metrics ModelCheckpoint::metrics_of(const Trainer& trainer) {
  auto metrics = trainer.callback_metrics();
  metrics["epoch"] = static_cast<double>(trainer.current_epoch());
  metrics["step"] = static_cast<double>(trainer.global_step());
  return metrics;
}

/// The score of a checkpoint if it is to be kept, else nullopt. Every rank decides by rank 0's value of the metric.
std::optional<double> ModelCheckpoint::score_to_keep(const Trainer& trainer, const Metrics& metrics) {
  if (options_.save_top_k == 0) return std::nullopt;
  if (options_.monitor.empty()) return 0.0;
  const auto value = trainer::value_on_main_rank(trainer.runtime(), metrics, options_.monitor);
  if (!value) {
    const auto missing = trainer::not_logged("ModelCheckpoint", options_.monitor, metrics);
    if (validated_ || !trainer.validates()) throw UsageError("MU449", missing + "; log it");
    if (trainer.runtime().is_main()) log::warning(missing, ", and no validation has run: nothing is saved here");
    return std::nullopt;
  }
  const auto score = std::isnan(*value) ? trainer::worst_value(options_.mode) : *value;
  const auto k = static_cast<std::size_t>(options_.save_top_k);
  if (options_.save_top_k > 0 && kept_.size() >= k && !trainer::is_better(score, worst()->second, options_.mode))
    return std::nullopt;
  return score;
}

void ModelCheckpoint::save(Trainer& trainer, LastRule last) {
  const auto step = trainer.global_step();
  if (step == last_step_ || trainer.options().fast_dev_run > 0) return;
  const auto metrics = metrics_of(trainer);
  const auto score = score_to_keep(trainer, metrics);
  last_due_ = options_.save_last && (score || last == LastRule::always);
  if (!score && !last_due_) return;
  last_step_ = step;
  if (last_due_) name_last(trainer);
  if (score) save_as(trainer, metrics, *score);
  finish_save(trainer);
}

void ModelCheckpoint::name_last(const Trainer& trainer) {
  if (!last_path_.filename().string().starts_with("last")) last_path_ = free_name(trainer, "last", std::nullopt);
}

void ModelCheckpoint::save_as(Trainer& trainer, const Metrics& metrics, double score) {
  std::optional<fs::path> replaced;
  if (options_.monitor.empty() ? options_.save_top_k == 1 && !kept_.empty()
                               : options_.save_top_k > 0 && std::ssize(kept_) >= options_.save_top_k)
    replaced = options_.monitor.empty() ? kept_.begin()->first : worst()->first;
  if (replaced) kept_.erase(*replaced);
  const auto path = free_name(trainer, format_checkpoint_name(metrics), replaced);
  kept_[path] = score;
  const bool best = options_.monitor.empty() || !best_score_ || trainer::is_better(score, *best_score_, options_.mode);
  if (best) best_path_ = path;
  if (best && !options_.monitor.empty()) best_score_ = score;
  if (!options_.save_last) last_path_ = path;
  if (!replaced_.empty()) finish_asynchronous_save(trainer);
  if (replaced && *replaced != path) replaced_ = *replaced;
  trainer.save_checkpoint(path, how());
}

void ModelCheckpoint::finish_save(Trainer& trainer) {
  if (std::exchange(last_due_, false)) trainer.save_checkpoint(last_path_, how());
  if (!options_.asynchronous) remove_replaced(trainer);
}

/// The path for a new checkpoint, as rank 0 sees the folder; `going`, which is about to be removed, may be reused.
fs::path ModelCheckpoint::free_name(const Trainer& trainer, const std::string& name,
                                    const std::optional<fs::path>& going) const {
  auto path = folder_ / (name + kEnd);
  const auto taken = [&] {
    return fs::exists(path) && path != going && !trainer::is_interrupted_checkpoint(trainer.runtime(), path);
  };
  for (int version = 1; options_.enable_version_counter && taken(); ++version)
    path = folder_ / (name + "-v" + std::to_string(version) + kEnd);
  return trainer.runtime().broadcast_object(path.string());
}

void ModelCheckpoint::remove_replaced(const Trainer& trainer) {
  const auto folder = std::exchange(replaced_, fs::path());
  std::error_code problem;
  if (!folder.empty() && trainer.runtime().is_main()) fs::remove_all(folder, problem);
  if (problem) log::warning("an older checkpoint, ", folder.string(), ", cannot be removed: ", problem.message());
}

std::string ModelCheckpoint::format_checkpoint_name(const Metrics& metrics) const {
  const std::string pattern = options_.filename.empty() ? "{epoch}-{step}" : options_.filename;
  std::string name;
  for (std::size_t at = 0; at < pattern.size();) {
    const auto open = pattern.find('{', at), close = pattern.find('}', open);
    name += pattern.substr(at, open - at);
    if (open == pattern.npos) break;
    if (close == pattern.npos)
      throw ConfigError("MU451", "a field of the file name \"" + pattern + "\" of a ModelCheckpoint has no }");
    const auto field = pattern.substr(open + 1, close - open - 1);
    const auto colon = field.find(':');
    const auto key = field.substr(0, colon);
    const auto found = metrics.find(key);
    if (options_.auto_insert_metric_name) name += key + "=";
    name += field_text(found == metrics.end() ? 0 : found->second, colon == field.npos ? "" : field.substr(colon + 1));
    at = close + 1;
  }
  return name;
}

// NOLINTNEXTLINE(bugprone-throw-keyword-missing): a callback, not an exception
OnExceptionCheckpoint::OnExceptionCheckpoint(OnExceptionCheckpointOptions options) : options_(std::move(options)) {
  if (options_.filename.empty()) trainer::raise_for("OnExceptionCheckpoint", {{"filename is empty; give a name"}});
}

void OnExceptionCheckpoint::setup(Trainer& trainer, TrainerModule&, Stage stage) {
  const auto folder = options_.dirpath.empty() ? trainer.options().default_root_dir / "checkpoints" : options_.dirpath;
  path_ = folder / (options_.filename + ".ckpt");
  fits_ = stage == Stage::fit;
}

void OnExceptionCheckpoint::on_exception(Trainer& trainer, TrainerModule&, const std::exception_ptr&) {
  if (!fits_ || !trainer.fitting()) return;
  trainer.save_checkpoint(trainer.saves_inside_batch() ? inside_batch() : path_);
}

// A separate name: a complete checkpoint of an earlier start may be the only one that "last" can choose.
std::filesystem::path OnExceptionCheckpoint::inside_batch() const {
  return path_.parent_path() / (options_.filename + "-in-batch.ckpt");
}

void OnExceptionCheckpoint::on_fit_end(Trainer& trainer, TrainerModule&) {
  if (!trainer.runtime().is_main()) return;
  for (const auto& path : {path_, inside_batch()}) {
    std::error_code problem;
    std::filesystem::remove_all(path, problem);
    if (problem) log::warning("the checkpoint ", path.string(), " cannot be removed: ", problem.message());
  }
}

}  // namespace muster
