#include "window_state.h"

#include <array>
#include <cstddef>

namespace muster::runtime {
namespace {

using Next = std::optional<WindowState>;
using Row = std::array<Next, 6>;  // by event: begin_middle, begin_last, begin_rest, count, reset, resume

constexpr Next kNever = std::nullopt, kClosed = WindowState::closed, kOpen = WindowState::open,
               kMiddle = WindowState::middle, kLast = WindowState::last, kRest = WindowState::rest,
               kRestOpen = WindowState::rest_open;

constexpr std::array<Row, 6> kTable{{
    {kMiddle, kLast, kRest, kClosed, kClosed, kOpen},     // closed
    {kMiddle, kLast, kRest, kOpen, kClosed, kOpen},       // open
    {kNever, kNever, kNever, kOpen, kClosed, kOpen},      // middle
    {kNever, kNever, kNever, kClosed, kClosed, kOpen},    // last
    {kNever, kNever, kNever, kRestOpen, kClosed, kOpen},  // rest
    {kMiddle, kLast, kRest, kRestOpen, kClosed, kOpen},   // rest_open
}};

}  // namespace

std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept {
  return kTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace muster::runtime
