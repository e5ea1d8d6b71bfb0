#include "window_state.h"

#include <array>
#include <cstddef>

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

}  // namespace

std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept {
  return kTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace muster::runtime
