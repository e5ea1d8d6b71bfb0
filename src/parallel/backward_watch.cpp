#include "parallel/backward_watch.h"

#include <array>

#include "muster/base/error.h"

namespace muster::parallel {
namespace {

using Move = BackwardTransition;
using BackwardRow = std::array<Move, 10>;  // by event, in the order of BackwardEvent

constexpr auto kIdle = BackwardState::idle, kAnnounced = BackwardState::announced, kFinished = BackwardState::finished,
               kUnannounced = BackwardState::unannounced, kAlone = BackwardState::alone,
               kFailed = BackwardState::failed;

constexpr Move start(BackwardState next) { return {.begin = true, .next = next}; }
constexpr Move start_instead(BackwardState next) { return {.discard = true, .begin = true, .next = next}; }
constexpr Move stay(BackwardState state) { return {.next = state}; }
constexpr Move complete(BackwardState next) { return {.end = true, .report = true, .next = next}; }
constexpr Move kDrop{.discard = true, .next = kIdle};
// Which parameters are unused is not known before the outer call has ended.
constexpr Move kEndInside{.end = true, .next = kIdle};

constexpr std::array<BackwardRow, 6> kBackwardTable{{
    // idle
    {start(kAnnounced), start(kUnannounced), stay(kIdle), stay(kIdle), stay(kIdle), stay(kIdle), stay(kIdle),
     stay(kIdle), start(kAlone), stay(kIdle)},
    // announced
    {start_instead(kAnnounced), stay(kAnnounced), stay(kAnnounced), complete(kFinished), complete(kIdle), stay(kFailed),
     stay(kAnnounced), kDrop, start_instead(kAlone), stay(kAnnounced)},
    // finished
    {start(kAnnounced), start(kUnannounced), stay(kFinished), stay(kFinished), stay(kIdle), stay(kIdle),
     stay(kFinished), stay(kIdle), start(kAlone), stay(kFinished)},
    // unannounced
    {start_instead(kAnnounced), stay(kUnannounced), kEndInside, complete(kIdle), stay(kUnannounced), stay(kFailed),
     kDrop, kDrop, start_instead(kAlone), stay(kUnannounced)},
    // alone
    {start_instead(kAnnounced), start_instead(kUnannounced), stay(kAlone), stay(kAlone), stay(kAlone), stay(kAlone),
     stay(kAlone), kDrop, start_instead(kAlone), complete(kIdle)},
    // failed
    {start_instead(kAnnounced), start_instead(kUnannounced), stay(kFailed), stay(kFailed), stay(kFailed), stay(kFailed),
     stay(kFailed), kDrop, start_instead(kAlone), stay(kFailed)},
}};

}  // namespace

BackwardTransition transition(BackwardState state, BackwardEvent event) {
  return kBackwardTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

BackwardWatch::BackwardWatch(BackwardActions& model, Threads threads, bool checks_bypass)
    : model_(model), threads_(threads), checks_bypass_(checks_bypass) {}

BackwardWatch::~BackwardWatch() {
  for (const auto& [tensor, position] : early_hooks_) tensor.remove_hook(position);
  for (const auto& open : calls_)
    if (const auto call = open.lock()) call->watch = nullptr;
}

size_t BackwardWatch::watch(const NamedTensor& parameter) {
  const auto& [name, tensor] = parameter;
  const auto leaf = gradient_hooks_.size();
  if (checks_bypass_) bypass_.add_leaf(tensor);
  watched_.insert(tensor.unsafeGetTensorImpl());
  // A hook on the tensor runs before accumulation; a hook on the accumulator runs after it.
  early_hooks_.emplace_back(tensor, tensor.register_hook([this, leaf](const at::Tensor&) {
    // A backward that ends on another thread, or a forward there, may add parameters to what the model looks up.
    const base::Lock lock(mutex_);
    model_.before_gradient(leaf);
  }));
  gradient_hooks_.emplace_back(tensor,
                               [this, leaf, name = name](const at::Tensor& self) { on_gradient(leaf, name, self); });
  capture_hooks_.emplace_back(tensor, [name = name] {
    throw UsageError("MU153",
                     "autograd::grad with respect to parameter '" + name +
                         "' of a prepared model would give the gradient of this rank's part of the batch only: call "
                         "backward, differentiate with respect to inputs or activations, or use a module that is not "
                         "prepared");
  });
  return leaf;
}

bool BackwardWatch::forward_begins() const { return forward_depth_ == 0 && hook::current_backward() < 0; }

void BackwardWatch::begin_forward() {
  erase_lost_calls();
  if (calls_.empty()) discard();
}

bool BackwardWatch::leave_forward() noexcept {
  if (forward_depth_ == 0 || --forward_depth_ > 0) return false;
  if (checks_bypass_) bypass_.forward_ended();
  return true;
}

void BackwardWatch::announce() {
  if (hook::current_backward() < 0) handle(BackwardEvent::announce);
}

void BackwardWatch::end_announced() {
  if (hook::current_backward() < 0) handle(BackwardEvent::end_announced);
}

void BackwardWatch::fail() noexcept {
  // In no state does this event have an action, so nothing throws.
  if (hook::current_backward() < 0) state_ = transition(state_, BackwardEvent::fail).next;
}

void BackwardWatch::reach() {
  const auto id = hook::current_backward();
  if (!calls_.empty())
    if (const auto latest = calls_.back().lock(); latest && latest->id == id) return;  // true of most gradients
  forget_lost_calls();
  const auto thread = std::this_thread::get_id();
  for (const auto& open : calls_) {
    const auto call = open.lock();
    if (!call) continue;
    if (call->id == id) return;
    if (threads_ == Threads::one && call->thread != thread)
      throw UsageError("MU192",
                       "two threads run backward through one sharded model at the same time, so the order of its "
                       "collectives would be left to chance: run one after the other, or sum the losses");
  }
  handle(BackwardEvent::reach);
  nested_ = nested_ || !calls_.empty();
  const auto call = std::make_shared<Call>(Call{this, id, thread});
  calls_.push_back(call);
  hook::at_end_of_backward([call] {
    if (call->watch) call->watch->call_ended(*call);
  });
}

void BackwardWatch::on_gradient(size_t leaf, const std::string& name, const at::Tensor& parameter) {
  const base::Lock lock(mutex_);
  // A gradient that is refused would stay as it is on this rank only. Tensor::grad() would first ask autograd about
  // leaves.
  const auto refuse = [&parameter](const char* id, const std::string& message) {
    parameter.mutable_grad().reset();
    throw UsageError(id, message);
  };
  if (hook::backward_is_recorded())
    refuse("MU153", "backward with create_graph reached parameter '" + name +
                        "' of a prepared model: ranks reduce its gradient in place, so it cannot be differentiated "
                        "again; compute the part that needs it by autograd::grad with respect to activations");
  if (parameter.unsafeGetTensorImpl()->grad().layout() != at::kStrided)
    refuse("MU154", "parameter '" + name +
                        "' of a prepared model got a sparse gradient, and ranks reduce dense ones only: make it dense "
                        "(EmbeddingOptions::sparse(false))");
  reach();
  if (checks_bypass_) bypass_.gradient_arrived(leaf, inside_forward());
  model_.gradient_arrived(leaf, parameter);
}

void BackwardWatch::call_ended(const Call& call) {
  const base::Lock lock(mutex_);
  // A call of a backward that was discarded in the meantime is not in the list.
  if (std::erase_if(calls_, [&call](const auto& open) { return open.lock().get() == &call; }) == 0) return;
  const bool inner = hook::backward_is_nested();
  if (inner) bypass_.nested_backward_ended();
  nested_ = nested_ || inner;
  erase_lost_calls();
  if (calls_.empty()) handle(inner ? BackwardEvent::inner_call_ended : BackwardEvent::call_ended);
}

void BackwardWatch::forget_lost_calls() {
  if (erase_lost_calls() && calls_.empty()) handle(BackwardEvent::lose_calls);
}

bool BackwardWatch::erase_lost_calls() {
  return std::erase_if(calls_, [](const auto& open) { return open.expired(); }) > 0;
}

void BackwardWatch::handle(BackwardEvent event) {
  const auto now = state_;
  const auto move = transition(now, event);
  // Calls that are open on other threads do not belong to what follows before they reach the model again.
  if (move.discard || move.begin || move.end) calls_.clear();
  if (move.discard) model_.discard_backward();
  try {
    if (move.begin) {
      state_ = BackwardState::idle;
      nested_ = false;
      bypass_.backward_begins();
      model_.begin_backward(move.next);
    }
    state_ = move.next;
    if (move.end) model_.end_backward(now, move.report);
  } catch (...) {
    // No event discards a reduction alone that has failed, and the next backward would take what it left for its own.
    if ((move.begin ? move.next : now) == BackwardState::alone) model_.discard_backward();
    throw;
  }
  if (move.report) check_for_bypass();
}

}  // namespace muster::parallel
