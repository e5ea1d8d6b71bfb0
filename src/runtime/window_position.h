#pragma once

#include <cstdint>
#include <optional>

#include "muster/tree/state.h"

namespace muster::runtime {

/// A rank's position in a window of gradient accumulation. A micro-batch is counted once its weight is in the window's
/// sums: by its first loss or, if it has none, when the gradients are used or the next micro-batch begins.
enum class WindowState : uint8_t {
  closed,          ///< no window is open and all is counted: the optimizer steps; the next micro-batch begins a window
  open,            ///< the window continues, and all is counted
  open_uncounted,  ///< the window continues, and the current micro-batch is not counted yet
  last_uncounted,  ///< the current micro-batch ends the window, and is not counted yet
  left_uncounted,  ///< the current micro-batch is this rank's last, and is not counted yet; others continue the window
  left             ///< this rank's last micro-batch is counted; other ranks continue the window
};

enum class WindowEvent : uint8_t {
  begin_middle,  ///< a micro-batch begins that does not end the window
  begin_last,    ///< a micro-batch begins that ends the window
  begin_leave,   ///< a micro-batch begins that ends the window on this rank only
  count,         ///< the weight of the current micro-batch is added
  end,           ///< the current micro-batch, before its backward, is made the end of the window
  reset,         ///< the window is abandoned, or a closed window is loaded
  resume         ///< an open window is loaded
};

/// The state after an event; nullopt if the event cannot occur: a micro-batch begins only when the previous one is
/// counted.
std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept;

/// True if the optimizer steps after the current micro-batch, and before the first micro-batch.
constexpr bool ends_window(WindowState state) {
  return state == WindowState::closed || state == WindowState::last_uncounted;
}

/// True if only other ranks continue the window.
constexpr bool ends_here_only(WindowState state) {
  return state == WindowState::left_uncounted || state == WindowState::left;
}

/// True if no micro-batch waits to be counted.
constexpr bool all_counted(WindowState state) {
  return state == WindowState::closed || state == WindowState::open || state == WindowState::left;
}

/// A rank's position in its window of gradient accumulation. Thread safety: one thread at a time.
class WindowPosition {
 public:
  /// Begins a micro-batch. A window ends when Accelerate's Accelerator.step is a multiple of `num_steps`, and with the
  /// last micro-batch of a loader (`last`), but on this rank only if others go on. Returns whether it is a multiple.
  /// Requires: the micro-batch before is counted.
  bool begin(int num_steps, bool last, bool others_go_on) noexcept;
  /// A loss of the current micro-batch goes through backward.
  void note_backward() noexcept { went_backward_ = true; }
  /// The weight of the current micro-batch is in the window's sums.
  void count() noexcept { advance(WindowEvent::count); }
  /// Makes the current micro-batch the last of the window. Requires: it did not go through backward.
  void end() noexcept;
  /// Goes back to the start of a window.
  void reset() noexcept;

  /// True if no micro-batch of the window was begun, or all were and are counted.
  bool closed() const noexcept { return state_ == WindowState::closed; }
  /// True if the optimizer steps after this micro-batch, and before the first one.
  bool ends() const noexcept { return ends_window(state_); }
  /// True if this rank's part of the window ends with the current micro-batch, whether or not others continue it.
  bool ends_here() const noexcept { return ends() || left(); }
  /// True if only other ranks continue the window.
  bool left() const noexcept { return ends_here_only(state_); }
  bool all_counted() const noexcept { return runtime::all_counted(state_); }
  /// True in a window that this rank has begun, not finished, and could continue.
  bool unfinished() const noexcept { return state_ == WindowState::open || state_ == WindowState::open_uncounted; }
  /// Whether a loss of the current micro-batch went through backward.
  bool went_backward() const noexcept { return went_backward_; }
  /// True until the first backward of a window: the gradients in memory are those of the window before.
  bool begins() const noexcept { return micro_batches_ <= 1 && !went_backward_; }
  /// Number of micro-batches begun in the window.
  int micro_batches() const noexcept { return micro_batches_; }

  State state_dict() const;
  /// Throws: CheckpointError (MU208, MU209), and then changes nothing.
  void load_state_dict(const State& state);

 private:
  void advance(WindowEvent event) noexcept;

  WindowState state_ = WindowState::closed;
  int64_t step_ = 0;  // micro-batches, as Accelerate's Accelerator.step: a window ends at each multiple of num_steps
  int micro_batches_ = 1;
  bool went_backward_ = false;
};

}  // namespace muster::runtime
