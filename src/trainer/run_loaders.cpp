#include "run_loaders.h"

#include <ranges>

#include "base/log.h"
#include "limits.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/detail/converted_call.h"
#include "muster/runtime/loader_preparation.h"
#include "muster/trainer/callbacks.h"
#include "run.h"

namespace muster::trainer {
namespace {

struct KindNames {
  Hook loader;
  const char* step;
  const char* call;
};
constexpr KindNames kNames[] = {{Hook::train_dataloader, "training_step", "fit"},
                                {Hook::val_dataloader, "validation_step", "validate"},
                                {Hook::test_dataloader, "test_step", "test"},
                                {Hook::predict_dataloader, "predict_step", "predict"}};

bool all_true(const std::vector<bool>& flags) { return std::ranges::all_of(flags, std::identity()); }

}  // namespace

std::optional<int64_t> batches_in(const PreparedLoaders& prepared) {
  std::vector<int64_t> sizes;
  for (const auto& loader : prepared.loaders)
    if (const auto size = loader->known_size()) sizes.push_back(*size);
  if (sizes.size() < prepared.loaders.size()) return std::nullopt;
  switch (prepared.combined.mode) {
    case LoaderMode::min_size: return std::ranges::min(sizes);
    case LoaderMode::max_size: return std::ranges::max(sizes);
    case LoaderMode::max_size_cycle: {
      const auto [least, most] = std::ranges::minmax(sizes);
      return least == 0 ? 0 : most;  // a loader without batches cannot be cycled
    }
    case LoaderMode::sequential: break;
  }
  int64_t sum = 0;
  for (const auto size : sizes) sum += size;
  return sum;
}

TrainingPass::TrainingPass(PreparedLoaders& prepared, int64_t epoch, int64_t done)
    : prepared_(prepared), passes_(prepared.loaders.size()), length_(batches_in(prepared)), returned_(done) {
  for (const auto& loader : prepared.loaders)
    ended_.push_back(done > 0 && passes_.size() > 1 && loader->epoch() > epoch);
}

data::BatchBox* TrainingPass::next_of(std::size_t i) {
  if (!passes_[i]) passes_[i] = prepared_.loaders[i]->begin_pass();
  auto* box = passes_[i]->next();
  if (!box) {
    ended_[i] = true;
    passes_[i].reset();
  }
  return box;
}

void* TrainingPass::next() {
  auto* batch = prepared_.combined.mode == LoaderMode::sequential ? next_in_sequence() : next_side_by_side();
  if (batch) ++returned_;
  return batch;
}

void* TrainingPass::next_in_sequence() {
  for (; current_ < passes_.size(); ++current_)
    if (!ended_[current_])
      if (auto* box = next_of(current_)) return prepared_.combined.parts[current_].batch_in(*box);
  return nullptr;
}

void* TrainingPass::next_side_by_side() {
  if (length_ && returned_ >= *length_) return nullptr;
  const auto mode = prepared_.combined.mode;
  if (mode == LoaderMode::min_size && std::ranges::any_of(ended_, std::identity())) return nullptr;  // after a resume
  std::vector<void*> batches;
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    const bool ends_for_good = mode == LoaderMode::max_size;
    auto* box = ends_for_good && ended_[i] ? nullptr : next_of(i);
    if (!box && mode == LoaderMode::min_size) return nullptr;
    if (!box && mode == LoaderMode::max_size_cycle) {
      if (all_true(ended_)) return nullptr;
      box = next_of(i);  // a shorter loader starts over with its next epoch
      if (!box) return nullptr;
    }
    batches.push_back(box ? prepared_.combined.parts[i].batch_in(*box) : nullptr);
  }
  if (mode == LoaderMode::max_size && all_true(ended_)) return nullptr;
  return prepared_.combined.joined(batches);
}

bool TrainingPass::at_end() const {
  if (length_ && passes_.size() > 1) return returned_ >= *length_;
  const auto at_last = [&](std::size_t i) { return prepared_.loaders[i]->end_of_dataloader(); };
  const auto all = std::views::iota(std::size_t{0}, passes_.size());
  switch (prepared_.combined.mode) {
    case LoaderMode::sequential: return current_ + 1 == passes_.size() && at_last(current_);
    case LoaderMode::min_size: return std::ranges::any_of(all, at_last);
    case LoaderMode::max_size:
    case LoaderMode::max_size_cycle: break;
  }
  return std::ranges::all_of(all, [&](std::size_t i) { return ended_[i] || at_last(i); });
}

const StepTable& TrainingPass::steps() const {
  return prepared_.combined.joint_steps ? *prepared_.combined.joint_steps : *prepared_.combined.parts[current_].steps;
}

int64_t TrainingPass::loader() const { return static_cast<int64_t>(current_); }

void RunLoaders::begin(Stage stage) {
  prepared_ = {};
  if (stage == Stage::fit) saved_kinds_.clear(), validation_of_.reset();
}

RunLoaders::All RunLoaders::take() { return std::exchange(prepared_, {}); }

PreparedLoaders& RunLoaders::of(StepKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  auto& prepared = prepared_[index];
  if (prepared.made) return prepared;
  const auto& names = kNames[index];
  const auto& make = run_.inputs().loaders[index];
  if (!make)
    throw UsageError(
        "MU444", formatted("there is no loader for {}(): give it one, or a data module or module with {}() and {}()",
                           names.call, info(names.loader).name, names.step));
  prepared.combined = run_.hooks.run(names.loader, make);
  if (prepared.combined.parts.empty())
    throw UsageError("MU444", std::string("the list of loaders for ") + names.call + "() is empty; give at least one");
  const bool saved = is_saved(kind);
  const bool in_order = !run_.options.overfit_batches.none() && index <= static_cast<std::size_t>(StepKind::validation);
  for (const auto& part : prepared.combined.parts) {
    const auto* steps = part.steps ? part.steps : prepared.combined.joint_steps;
    if (in_order && part.loader->options().shuffle && run_.runtime.is_main())
      log::warning("overfit_batches takes the same batches in every epoch, so shuffling is off for ", names.call, "()");
    prepared.loaders.push_back(
        prepare_loader(run_.runtime, *part.loader,
                       {.filler_batches = kind != StepKind::training,
                        .in_order = in_order,
                        .move_to_device = steps->transfer == nullptr,
                        .place = saved ? std::optional(static_cast<int64_t>(kind)) : std::nullopt}));
  }
  prepared.made = true;
  if (saved) saved_kinds_.insert(kind);
  if (kind == StepKind::validation) note_validation_loaders();
  return prepared;
}

/// Whether checkpoints have the loaders of this kind. A resumed checkpoint of a run without validation has no entry for
/// those of validation.
bool RunLoaders::is_saved(StepKind kind) const {
  const auto is_kind = [&](const State& one) { return one.integer() == static_cast<int64_t>(kind); };
  return run_.is_fit() &&
         (!resumed_kinds_ || resumed_kinds_->empty() || std::ranges::any_of(resumed_kinds_->list(), is_kind));
}

/// Loaders that a sanity check made serve the current epoch only if that epoch validates. An epoch that is resumed at
/// its start makes its loaders again, as it would have without the interruption.
void RunLoaders::note_validation_loaders() {
  const bool in_epoch = run_.progress.batches > 0;
  validation_of_ = run_.progress.epoch - (resumed_kinds_ && !in_epoch ? 1 : 0);
  if (run_.sanity_checking() && !run_.validates_in_epoch()) validation_of_.reset();
}

void RunLoaders::forget(StepKind kind) {
  prepared_[static_cast<std::size_t>(kind)] = {};
  saved_kinds_.erase(kind);
}

void RunLoaders::renew_training(int64_t first_epoch) {
  const auto every = run_.options.reload_dataloaders_every_n_epochs;
  const auto epoch = run_.progress.epoch;
  if (every == 0 || epoch % every != 0 || epoch == first_epoch) return;
  forget(StepKind::training);
  of(StepKind::training);
}

void RunLoaders::renew_validation() {
  const auto every = run_.options.reload_dataloaders_every_n_epochs;
  if (every > 0 && (!validation_of_ || *validation_of_ / every != run_.progress.epoch / every))
    forget(StepKind::validation);
}

std::optional<int64_t> RunLoaders::training_batches() {
  return batches_of(run_.options.limit_train_batches, batches_in(of(StepKind::training)), "limit_train_batches");
}

std::vector<std::optional<int64_t>> RunLoaders::batches_of_pass(StepKind kind) {
  const auto& options = run_.options;
  if (kind == StepKind::training) return {training_batches()};
  std::vector<std::optional<int64_t>> all;
  for (const auto& loader : of(kind).loaders) {
    auto batches = batches_of(evaluation_limit(options, kind), loader->known_size(), "the limit of batches");
    if (run_.sanity_checking() && options.num_sanity_val_steps >= 0)
      batches = std::min(batches.value_or(options.num_sanity_val_steps), options.num_sanity_val_steps);
    all.push_back(batches);
  }
  return all;
}

std::optional<int64_t> RunLoaders::estimated_stepping_batches() {
  const auto& options = run_.options;
  if (!run_.stage())
    throw UsageError("MU446", "estimated_stepping_batches() was called outside of a run; call it in a hook");
  std::optional<int64_t> steps;
  if (StopRule{options}.has_last_epoch())
    if (const auto batches = training_batches()) {
      const auto steps_in_epoch = [&](int64_t window) { return (*batches + window - 1) / window; };
      steps = steps_in_epoch(options.accumulate_grad_batches) * std::max<int64_t>(*options.max_epochs, 1);
      for (const auto& callback : run_.hooks.callbacks())
        if (const auto* schedule = dynamic_cast<const GradientAccumulationScheduler*>(callback.get())) {
          steps = 0;
          for (int64_t epoch = 0; epoch < *options.max_epochs; ++epoch)
            *steps += steps_in_epoch(schedule->accumulate_grad_batches(epoch));
          break;
        }
    }
  if (options.max_steps >= 0) steps = std::min(steps.value_or(options.max_steps), options.max_steps);
  return steps;
}

void RunLoaders::transfer(const StepTable& steps, void* batch, int64_t loader) {
  if (steps.transfer)
    run_.hooks.run(Hook::on_batch_transfer,
                   [&] { steps.transfer(run_.inputs().transfer_owner, batch, run_.runtime.device(), loader); });
  steps.type.visit(batch,
                   [&](at::Tensor& tensor) { runtime::convert_input(*run_.preparation->model.prepared(), tensor); });
}

State::List RunLoaders::saved_kinds() const {
  State::List kinds;
  for (const auto kind : saved_kinds_) kinds.emplace_back(static_cast<int64_t>(kind));
  return kinds;
}

void RunLoaders::count_batches_done() {
  const auto& prepared = of(StepKind::training);
  auto& progress = run_.progress;
  if (progress.batches == 0) return;
  const bool in_turn = prepared.combined.mode == LoaderMode::sequential;
  int64_t batches = 0;
  for (const auto& loader : prepared.loaders) {
    const bool over = loader->epoch() > progress.epoch;
    if (over && (!in_turn || !loader->known_size())) continue;
    const auto done = over ? *loader->known_size() : loader->num_yielded();
    batches = in_turn ? batches + done : std::max(batches, done);
  }
  if (batches > 0) progress.batches = batches;
}

}  // namespace muster::trainer
