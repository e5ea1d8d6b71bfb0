#pragma once

#include <cstdint>
#include <optional>

namespace muster::runtime {

/// Where a rank is in a window of gradient accumulation. A micro-batch is counted once its weight is in the window's
/// sums: by its first loss, or, if it has none, when the gradients are used or the next micro-batch begins.
enum class WindowState : uint8_t {
  closed,          ///< no window is open, and all is counted: the optimizer steps; the next micro-batch begins a window
  open,            ///< the window goes on, and all is counted
  open_uncounted,  ///< as open, but the current micro-batch is not counted yet
  last_uncounted,  ///< the current micro-batch ends the window, and is not counted yet
  left_uncounted,  ///< the current micro-batch is this rank's last, and is not counted yet; others continue the window
  left             ///< as left_uncounted, but all is counted
};

enum class WindowEvent : uint8_t {
  begin_middle,  ///< a micro-batch begins that does not end the window
  begin_last,    ///< one begins that ends it
  begin_leave,   ///< one begins that ends it here only
  count,         ///< the weight of the current micro-batch is added
  end,           ///< the current micro-batch, whose backward has not run yet, is to end the window after all
  reset,         ///< the window is given up, or one is loaded that is closed
  resume         ///< a window is loaded that is open
};

/// The state after an event; nullopt if the event cannot occur: a micro-batch begins only when the one before is
/// counted.
std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept;

/// True if the optimizer steps after the current micro-batch, and before the first micro-batch.
constexpr bool ends_window(WindowState state) {
  return state == WindowState::closed || state == WindowState::last_uncounted;
}
/// Only other ranks go on with the window.
constexpr bool ends_here_only(WindowState state) {
  return state == WindowState::left_uncounted || state == WindowState::left;
}
/// No micro-batch waits to be counted.
constexpr bool all_counted(WindowState state) {
  return state == WindowState::closed || state == WindowState::open || state == WindowState::left;
}

}  // namespace muster::runtime
