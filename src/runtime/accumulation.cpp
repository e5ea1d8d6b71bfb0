#include "runtime/accumulation.h"

#include "base/log.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/parallel/managed_model.h"
#include "muster/runtime/accumulation.h"

namespace muster::runtime {
namespace {

using Next = std::optional<WindowState>;
using Row = std::array<Next, 7>;  // columns: begin_middle, begin_last, begin_leave, count, end, reset, resume

constexpr Next kNever = std::nullopt, kClosed = WindowState::closed, kOpen = WindowState::open,
               kMiddle = WindowState::open_uncounted, kLast = WindowState::last_uncounted,
               kLeave = WindowState::left_uncounted, kLeft = WindowState::left;

constexpr std::array<Row, 6> kTable{{
    {kMiddle, kLast, kLeave, kClosed, kClosed, kClosed, kOpen},  // closed
    {kMiddle, kLast, kLeave, kOpen, kNever, kClosed, kOpen},     // open
    {kNever, kNever, kNever, kOpen, kLast, kClosed, kOpen},      // open_uncounted
    {kNever, kNever, kNever, kClosed, kLast, kClosed, kOpen},    // last_uncounted
    {kNever, kNever, kNever, kLeft, kNever, kClosed, kOpen},     // left_uncounted
    {kMiddle, kLast, kLeave, kLeft, kNever, kClosed, kOpen},     // left
}};

double summed(const comm::Communicator& group, double mine) {
  comm::CoalescedAllReduce scalars(group, "gradient accumulation");
  scalars.add(mine, comm::ReduceOp::sum);
  scalars.run();
  return scalars.result(0);
}

double known_full_window(const MicroBatch& batch, int num_steps) {
  // Batches of varying size have no full step; any number that all ranks know will do.
  return static_cast<double>(batch.full > 0 ? batch.full : batch.total) * num_steps;
}

}  // namespace

std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept {
  return kTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

void WindowPosition::advance(WindowEvent event) noexcept {
  if (const auto next = transition(state_, event)) state_ = *next;
}

bool WindowPosition::begin(int num_steps, bool last, bool others_go_on) noexcept {
  if (closed()) micro_batches_ = 0;
  const bool full = ++step_ % num_steps == 0;
  if (last) step_ = 0;
  advance(last && !full && others_go_on ? WindowEvent::begin_leave
          : full || last                ? WindowEvent::begin_last
                                        : WindowEvent::begin_middle);
  ++micro_batches_;
  went_backward_ = false;
  return full;
}

void WindowPosition::end() noexcept {
  step_ = 0;
  advance(WindowEvent::end);
}

void WindowPosition::reset() noexcept {
  step_ = 0;
  went_backward_ = false;
  advance(WindowEvent::reset);
}

State WindowPosition::state_dict() const {
  return State::Map{{"counter", step_}, {"micro_batches", micro_batches_}, {"open", !ends()}};
}

void WindowPosition::load_state_dict(const State& state) {
  const auto counter = state.at("counter").integer();
  const auto micro_batches = state.at("micro_batches").as<int>();
  const bool open = state.at("open").boolean();
  step_ = counter;
  micro_batches_ = micro_batches;
  went_backward_ = open;
  advance(open ? WindowEvent::resume : WindowEvent::reset);
}

void WindowWeights::begin_window() noexcept {
  local_ = known_ = full_ = 0;
  known_by_all_ = true;
  weighted_ = false;
}

void WindowWeights::begin(const MicroBatch& batch) noexcept {
  count_ = static_cast<double>(batch.local);
  if (batch.total == 0) known_by_all_ = false;
  correction_ = 1;
}

void WindowWeights::weigh(double count) noexcept {
  count_ = count;
  known_by_all_ = false;
}

void WindowWeights::add_up(const MicroBatch& batch, int num_steps) noexcept {
  local_ += count_;
  known_ += static_cast<double>(batch.total + batch.samples_left);
  if (full_ == 0 && known_by_all_)
    full_ = known_full_window(batch, num_steps);  // also used by ranks whose first loss of the window comes later
}

void WindowWeights::choose_full(const MicroBatch& batch, int num_steps, const comm::Communicator& group) {
  if (full_ != 0) return;
  if (known_by_all_) {
    full_ = known_full_window(batch, num_steps);
    return;
  }
  if (agreed_ == 0) agreed_ = summed(group, count_) * num_steps;
  full_ = agreed_ > 0 ? agreed_ : 1;
}

double WindowWeights::correct(const comm::Communicator& group) {
  const double actual = known_by_all_ ? known_ : summed(group, local_);
  if (!known_by_all_ && actual > 0) agreed_ = actual;
  correction_ = actual > 0 ? full_ / actual : 1;
  return weighted_ ? correction_ : 1;
}

double WindowWeights::factor(int ranks) noexcept {
  weighted_ = true;
  return count_ * ranks / full_ * correction_;
}

State WindowWeights::state_dict() const {
  return State::Map{
      {"own", local_}, {"known", known_}, {"full", full_}, {"agreed", agreed_}, {"known_by_all", known_by_all_}};
}

void WindowWeights::load_state_dict(const State& state) {
  const bool open = state.at("open").boolean(), known_by_all = state.at("known_by_all").boolean();
  const double own = state.at("own").number(), known = state.at("known").number(), full = state.at("full").number(),
               agreed = state.at("agreed").number();
  local_ = own;
  known_ = known;
  full_ = full;
  agreed_ = agreed;
  known_by_all_ = known_by_all;
  weighted_ = open;
}

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
  if (joined_ == Joined::by_active_ranks)
    throw UsageError(
        "MU585",
        "accumulate() was called inside join_uneven_inputs with divide_by_initial_world_size off: its windows "
        "give every sample the same weight already, so leave that option on");
  used_ = true;
  add_up();
  if (window_.closed()) weights_.begin_window();
  batch_ = batch;
  rescale_ = std::move(rescale);
  const bool last = options_.sync_with_dataloader && batch.last;
  const bool full = window_.begin(options_.num_steps, last, /*others_go_on=*/joined() && batch.samples_left > 0);
  if (full || !last) batch_.samples_left = 0;  // samples of other windows
  weights_.begin(batch);
  inside_ = true;
}

void Accumulation::end_window() {
  if (joined())
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
  if (joined())
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
  if (batch_.every_rank || joined() || !weights_.known_by_all() || shared) return;
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

double Accumulation::loss_factor() {
  window_.note_backward();
  if (options_.weighting == GradientWeighting::fixed) return 1.0 / options_.num_steps;
  if (!inside_) return 1;
  if (options_.weighting == GradientWeighting::sum) return group_.size();
  count();
  return weights_.factor(group_.size());
}

void Accumulation::set_joined(Joined joined) noexcept {
  joined_ = joined;
  if (joined == Joined::no) end_left_window();
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

NoSyncScope::NoSyncScope(const std::vector<std::shared_ptr<parallel::ManagedModel>>& models, bool enabled) {
  if (!enabled) return;
  for (const auto& model : models) {
    before_.emplace_back(model, model->gradient_sync());
    model->set_gradient_sync(false);
  }
}

NoSyncScope::~NoSyncScope() {
  for (auto& [model, sync] : before_) model->set_gradient_sync(sync);
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
