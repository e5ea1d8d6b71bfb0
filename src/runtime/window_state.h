#pragma once

#include <cstdint>
#include <optional>

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

}  // namespace muster::runtime
