#include "runtime/accumulation.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/runtime/accumulation.h"
#include "runtime/window_position.h"
#include "runtime/window_weights.h"

namespace muster::runtime {

Accumulation::Accumulation(const GradientAccumulationOptions& options, comm::Communicator group)
    : options_(options), group_(std::move(group)) {
  set_num_steps(options.num_steps);
}

void Accumulation::set_num_steps(int steps) {
  if (steps < 1)
    throw ConfigError(
        "MU181", "gradients cannot be accumulated over " + std::to_string(steps) + " micro-batches; give at least 1");
  options_.num_steps = steps;
}

void Accumulation::begin(const MicroBatch& batch, std::function<void(double)> rescale) {
  used_ = true;
  add_up();
  if (window_.closed()) weights_.begin_window();
  batch_ = batch;
  rescale_ = std::move(rescale);
  const bool last = options_.sync_with_dataloader && batch.last;
  const bool full = window_.begin(options_.num_steps, last, /*others_go_on=*/joined_ && batch.samples_left > 0);
  if (full || !last) batch_.samples_left = 0;  // samples of other windows
  weights_.begin(batch);
  inside_ = true;
}

void Accumulation::end_window() {
  if (joined_)
    throw UsageError(
        "MU431",
        "end_window() was called inside join_uneven_inputs, where ranks without a batch cannot end theirs; "
        "let windows end by gradient_accumulation_steps there, or make ranks equal with even_batches");
  if (sync()) return;
  if (window_.went_backward())
    throw UsageError("MU430",
                     "end_window() was called after a loss of the micro-batch went backward, so its gradients stayed "
                     "on this rank; call end_window() at once after accumulate()");
  window_.end();
}

void Accumulation::note_step() {
  count_last();
  if (options_.num_steps == 1 || std::exchange(used_, true) || group_.rank() != 0) return;
  log::warning("MU248", ": gradient_accumulation_steps is ", options_.num_steps,
               ", and an optimizer stepped though accumulate() was never "
               "called: it steps every time. Open each micro-batch by `auto window = accelerator.accumulate(model);`");
}

void Accumulation::weigh(double count) {
  if (window_.all_counted())
    throw UsageError(
        "MU182",
        "a micro-batch was given its count after a loss of it went backward; call count() at once after accumulate()");
  if (joined_)
    throw UsageError("MU183",
                     "count() was called inside join_uneven_inputs, where ranks without a batch cannot tell theirs; "
                     "let batches count by their samples there, or make ranks equal with even_batches");
  weights_.weigh(count);
}

/// Counts the current micro-batch in the window, with or without a loss.
void Accumulation::add_up() {
  if (window_.all_counted()) return;
  weights_.add_up(batch_, options_.num_steps);
  window_.count();
}

/// Refuses a batch in a window that the other ranks have ended: they would match this rank's messages with the
/// gradients of their next batches.
void Accumulation::require_shared_window() const {
  const bool shared = window_.micro_batches() > 1 && options_.sync_with_dataloader && !options_.sync_each_batch;
  if (batch_.every_rank || joined_ || !weights_.known_by_all() || shared) return;
  throw UsageError("MU345",
                   "this rank has a batch of a step in which other ranks have none, since even_batches is off, and "
                   "they have ended their window of gradients: run the loop in join_uneven_inputs, let even_batches "
                   "make ranks equal, or end the loop of every rank after as many batches");
}

void Accumulation::count() {
  if (window_.all_counted()) return;
  require_shared_window();
  add_up();
  weights_.choose_full(batch_, options_.num_steps, group_);
  if (!window_.ends_here()) return;
  if (const double factor = weights_.correct(group_); factor != 1) rescale_(factor);
}

void Accumulation::count_last() {
  if (options_.weighting == GradientWeighting::mean && window_.ends_here()) count();
}

double Accumulation::mean_factor() {
  count();
  return weights_.factor(group_.size());
}

double Accumulation::loss_factor() {
  window_.note_backward();
  switch (options_.weighting) {
    case GradientWeighting::fixed: return 1.0 / options_.num_steps;
    case GradientWeighting::sum: return inside_ ? group_.size() : 1;
    case GradientWeighting::mean: break;
  }
  return inside_ ? mean_factor() : 1;
}

void Accumulation::set_joined(bool joined) noexcept {
  joined_ = joined;
  if (!joined && window_.left()) reset();
}

void Accumulation::reset() noexcept {
  inside_ = false;
  window_.reset();
}

State Accumulation::state_dict() const {
  auto weights = weights_;
  if (!window_.all_counted()) weights.add_up(batch_, options_.num_steps);
  State state = State::Map{{"num_steps", options_.num_steps}};
  for (auto& part : {window_.state_dict(), weights.state_dict()})
    for (const auto& [name, value] : part.map()) state.set(name, value);
  return state;
}

void Accumulation::load_state_dict(const State& state) {
  const auto steps = state.at("num_steps").as<int>();
  auto window = window_;
  auto weights = weights_;
  window.load_state_dict(state);
  weights.load_state_dict(state);
  if (!window.ends() && steps != options_.num_steps)
    throw CheckpointError("MU240", "the checkpoint was saved inside a window of " + std::to_string(steps) +
                                       " micro-batches and this program accumulates over " +
                                       std::to_string(options_.num_steps) +
                                       ": resume with the same number, and change it between windows");
  window_ = window;
  weights_ = weights;
  inside_ = false;
}

}  // namespace muster::runtime

namespace muster {

AccumulationScope::AccumulationScope(std::shared_ptr<runtime::Accumulation> accumulation,
                                     const std::vector<std::shared_ptr<parallel::ManagedModel>>& models)
    : accumulation_(std::move(accumulation)) {
  quiet_.emplace(models, !accumulation_->communicates());
}
AccumulationScope::~AccumulationScope() { accumulation_->end(); }
void AccumulationScope::count(double samples) { accumulation_->weigh(samples); }
void AccumulationScope::end_window() {
  accumulation_->end_window();
  quiet_.reset();
}
bool AccumulationScope::sync_gradients() const { return accumulation_->sync(); }

}  // namespace muster
