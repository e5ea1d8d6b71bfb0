#pragma once  // for other rooms

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::hook {

/// Calls a function each time a gradient was accumulated into a leaf, until this object is destroyed. LibTorch has one
/// such hook per tensor: an existing hook is called first, and is restored at the end. What the function throws
/// propagates out of backward.
/// Thread safety: the function runs on the thread that runs that part of backward. Construct and destroy this object
/// outside backward.
class GradientHook {
 public:
  using Function = std::function<void(const at::Tensor& leaf)>;
  /// Requires: `leaf` is a leaf that requires a gradient.
  GradientHook(const at::Tensor& leaf, Function function);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept = default;
  GradientHook& operator=(GradientHook&&) = delete;

 private:
  class Chained;
  at::Tensor leaf_;
  std::shared_ptr<Function> function_;  // empty once this object is gone; nullptr after a move
};

/// Calls a function each time autograd::grad(), which accumulates nothing, computes the gradient of a leaf for its
/// caller, until this object is destroyed. What the function throws propagates out of autograd::grad().
class CaptureHook {
 public:
  CaptureHook(const at::Tensor& leaf, std::function<void()> function);
  ~CaptureHook();
  CaptureHook(CaptureHook&&) noexcept = default;
  CaptureHook& operator=(CaptureHook&&) = delete;

 private:
  at::Tensor leaf_;
  unsigned position_ = 0;
};

/// Calls the function on this thread when the running backward has computed everything. What the function throws
/// propagates out of backward.
/// Requires: called from inside a hook.
void at_end_of_backward(std::function<void()> function);

/// Inside a function passed to at_end_of_backward(): whether the backward that has ended was called from within another
/// one.
bool backward_is_nested();

/// An id of the current backward call; -1 outside of one.
int64_t current_backward();

/// Inside a hook: whether this backward is itself recorded (create_graph).
bool backward_is_recorded();

/// Tracks the autograd graphs that use some leaves. It can tell a graph that began after note() from one that note()
/// recorded, as long as the recorded graph no longer exists.
/// Thread safety: do not call note() concurrently with other members.
class GraphUse {
 public:
  explicit GraphUse(const std::vector<at::Tensor>& leaves);
  GraphUse(GraphUse&&) noexcept = default;
  GraphUse& operator=(GraphUse&&) noexcept = default;
  /// Tracks one more leaf. Leaves are numbered in the order in which they are added.
  void add(const at::Tensor& leaf);
  /// Records the graphs that are alive now.
  void note() noexcept;
  /// Whether some graph that uses leaf i is alive.
  bool alive(size_t i) const;
  /// Whether a graph that uses leaf i is alive and was already alive at the last note().
  bool noted(size_t i) const;

 private:
  struct Noted;  // the type of a graph's node differs between LibTorch's versions, and only its large headers say which
  std::vector<at::Tensor> leaves_;
  std::vector<std::shared_ptr<Noted>> noted_;  // by leaf
};

}  // namespace muster::hook
