#pragma once

#include <cstddef>
#include <thread>
#include <unordered_set>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "hook/gradient_hooks.h"
#include "parallel/local.h"

namespace muster::parallel {

/// What runs in a model: a backward, which is seen through calls of LibTorch's backward that reach the model, or a
/// reduction of gradients that no backward of this rank began.
enum class BackwardState : uint8_t {
  idle,         ///< nothing
  announced,    ///< a backward that the runtime has announced
  finished,     ///< the same, after its outermost call has ended; the runtime has not said so yet
  unannounced,  ///< a backward that the program began itself; it ends with the last call that reached the model
  alone,        ///< a reduction without a backward
  failed,       ///< a backward of the runtime has thrown, and nothing has discarded what it left
};

enum class BackwardEvent : uint8_t {
  announce,          ///< the runtime says that a backward begins
  reach,             ///< a further call of backward has reached the model
  inner_call_ended,  ///< the last open call has ended, inside of a call that has not reached the model so far
  call_ended,        ///< the last open call has ended, and it was the outermost one
  end_announced,     ///< the runtime says that the backward has ended
  fail,              ///< the runtime says that the backward has thrown
  lose_calls,        ///< the calls that were open have thrown
  discard,           ///< what runs is not wanted any more
  start_alone,
  end_alone,
};

/// The actions that an event requires, in this order.
struct BackwardTransition {
  bool discard = false;  ///< discard what runs
  bool begin = false;    ///< begin what `next` says
  bool end = false;      ///< reduce what was collected
  bool report = false;   ///< throw the errors that can only be known of a whole backward
  BackwardState next = BackwardState::idle;
  friend bool operator==(const BackwardTransition&, const BackwardTransition&) = default;
};

/// The state machine of all models with hooks. What a backward that threw has left is discarded by the next event that
/// begins something, and not before: this rank may wait for ranks that did not throw, until the time-out.
/// Why: docs/decisions/0169-one-life-of-a-backward.md.
BackwardTransition transition(BackwardState state, BackwardEvent event);

/// Detects a backward in which no gradient came from a forward in a scope of the prepared model.
/// Thread safety: do not call forward_ended() concurrently with other members.
class BypassCheck {
 public:
  /// Leaves are numbered in the order in which they are added.
  void add_leaf(const at::Tensor& leaf) { graphs_.add(leaf); }
  /// A forward scope has ended: the graphs that are alive now came from it.
  void forward_ended() noexcept { graphs_.note(); }
  void backward_begins() noexcept { gradient_ = scoped_ = false; }
  /// `inside_forward`: whether a scope is open, in which the gradient's graph may have been made.
  void gradient_arrived(size_t leaf, bool inside_forward) {
    gradient_ = true;
    scoped_ = scoped_ || inside_forward || graphs_.noted(leaf);
  }
  /// A backward has ended inside another one: its forward ran there, outside of every scope, which is allowed.
  void nested_backward_ended() noexcept { scoped_ = true; }
  /// Throws: UsageError (MU151), once per backward.
  void check() {
    if (scoped_ || !std::exchange(gradient_, false)) return;
    refuse_bypass();
  }

 private:
  hook::GraphUse graphs_{std::vector<at::Tensor>()};
  bool gradient_ = false;  // whether a gradient has arrived
  bool scoped_ = false;    // whether a gradient came from a forward in a scope
};

/// What a model does in a backward. A BackwardWatch calls these functions, and holds its mutex.
class BackwardActions {
 public:
  /// A backward, or a reduction alone, begins. After an exception nothing runs.
  virtual void begin_backward(BackwardState what) = 0;
  /// Autograd is about to accumulate a gradient.
  virtual void before_gradient(size_t leaf) = 0;
  /// The gradient is dense and has no graph.
  virtual void gradient_arrived(size_t leaf, const at::Tensor& parameter) = 0;
  /// What has begun ends. `complete`: all of the backward has been seen, so unused parameters are known.
  virtual void end_backward(BackwardState what, bool complete) = 0;
  /// What has begun was not completed.
  virtual void discard_backward() noexcept = 0;

 protected:
  ~BackwardActions() = default;
};

/// Follows the backwards that reach a model, through hooks on its parameters, and calls the model's actions in the
/// order of BackwardState. A backward is announced by the runtime, or known by the first call that reaches the model.
/// Calls may be nested in one another, and may run on several threads; what they bring belongs to one backward, which
/// ends with the last of them.
///
/// Thread safety: hooks lock the mutex, which guards the model, too. The caller of the other functions holds it.
class BackwardWatch {
 public:
  enum class Threads { any, one };  ///< whether several threads may run backward at the same time

  /// `checks_bypass`: whether MU151 is checked. Requires: the model outlives this object.
  BackwardWatch(BackwardActions& model, Threads threads, bool checks_bypass);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;

  base::Mutex& mutex() const MUSTER_RETURNS_MUTEX(mutex_) { return mutex_; }

  /// Hooks up a parameter that requires a gradient, and returns its index: parameters are numbered in this order.
  size_t watch(const NamedTensor& parameter) MUSTER_REQUIRES(mutex_);
  bool watches(const at::Tensor& parameter) const MUSTER_REQUIRES(mutex_) {
    return watched_.contains(parameter.unsafeGetTensorImpl());
  }

  /// Whether enter_forward() would begin a forward, outside of backward and of other forwards. Then call
  /// begin_forward() first, which discards a backward that has thrown.
  bool forward_begins() const MUSTER_REQUIRES(mutex_);
  void begin_forward() MUSTER_REQUIRES(mutex_);
  void enter_forward() noexcept MUSTER_REQUIRES(mutex_) { ++forward_depth_; }
  /// Whether that was the outermost forward.
  bool leave_forward() noexcept MUSTER_REQUIRES(mutex_);
  bool inside_forward() const noexcept MUSTER_REQUIRES(mutex_) { return forward_depth_ > 0; }

  /// Call these two around a backward; inside another backward they do nothing.
  /// Throws: what the model's actions throw; UsageError (MU151) at the end.
  void announce() MUSTER_REQUIRES(mutex_);
  void end_announced() MUSTER_REQUIRES(mutex_);
  /// Call it instead of end_announced() if the backward has thrown. It discards nothing yet.
  void fail() noexcept MUSTER_REQUIRES(mutex_);
  /// A hook tells that the running call of backward has reached the model.
  /// Throws: UsageError (MU192) if only one thread may run backward and another one does.
  void reach() MUSTER_REQUIRES(mutex_);
  /// Discards a backward that was not announced if all its calls have thrown.
  void forget_lost_calls() MUSTER_REQUIRES(mutex_);
  /// Begins and ends a reduction without a backward.
  void start_alone() MUSTER_REQUIRES(mutex_) { handle(BackwardEvent::start_alone); }
  void end_alone() MUSTER_REQUIRES(mutex_) { handle(BackwardEvent::end_alone); }
  /// Discards a reduction without a backward that has not ended.
  void discard_alone() MUSTER_REQUIRES(mutex_) {
    if (state_ == BackwardState::alone) discard();
  }
  /// Discards what runs.
  void discard() MUSTER_REQUIRES(mutex_) { handle(BackwardEvent::discard); }

  /// Whether calls of this backward are nested in one another, or in a call that has not reached the model so far.
  bool nested() const noexcept MUSTER_REQUIRES(mutex_) { return nested_; }
  /// Throws: UsageError (MU151).
  void check_for_bypass() MUSTER_REQUIRES(mutex_) {
    if (checks_bypass_) bypass_.check();
  }

 private:
  /// One call of LibTorch's backward. LibTorch owns it through the function that it calls at the end, and destroys it
  /// if the call throws.
  struct Call {
    BackwardWatch* watch;  ///< nullptr once that is destroyed
    int64_t id;
    std::thread::id thread;
  };

  void handle(BackwardEvent event) MUSTER_REQUIRES(mutex_);
  void on_gradient(size_t leaf, const std::string& name, const at::Tensor& parameter);
  void call_ended(const Call& call);
  bool erase_lost_calls() MUSTER_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  BackwardActions& model_;
  const Threads threads_;
  const bool checks_bypass_;
  BackwardState state_ MUSTER_GUARDED_BY(mutex_) = BackwardState::idle;
  std::vector<std::weak_ptr<Call>> calls_ MUSTER_GUARDED_BY(mutex_);  // calls that are open
  bool nested_ MUSTER_GUARDED_BY(mutex_) = false;
  int forward_depth_ MUSTER_GUARDED_BY(mutex_) = 0;
  BypassCheck bypass_ MUSTER_GUARDED_BY(mutex_);
  std::unordered_set<const c10::TensorImpl*> watched_ MUSTER_GUARDED_BY(mutex_);
  std::vector<hook::GradientHook> gradient_hooks_ MUSTER_GUARDED_BY(mutex_);
  // Called where autograd::grad() would return a leaf's gradient: MU153.
  std::vector<hook::CaptureHook> capture_hooks_ MUSTER_GUARDED_BY(mutex_);
  // Called before a gradient is accumulated.
  std::vector<std::pair<at::Tensor, unsigned>> early_hooks_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::parallel
