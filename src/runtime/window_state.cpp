#include "window_state.h"

#include <array>
#include <cstddef>

namespace muster::runtime {
namespace {

using Next = std::optional<WindowState>;
using Row = std::array<Next, 7>;  // by event: begin_middle, begin_last, begin_joining, count, end, reset, resume

constexpr Next kNever = std::nullopt, kClosed = WindowState::closed, kOpen = WindowState::open,
               kMiddle = WindowState::middle, kLast = WindowState::last, kJoining = WindowState::joining,
               kJoined = WindowState::joined;

constexpr std::array<Row, 6> kTable{{
    {kMiddle, kLast, kJoining, kClosed, kClosed, kClosed, kOpen},  // closed
    {kMiddle, kLast, kJoining, kOpen, kNever, kClosed, kOpen},     // open
    {kNever, kNever, kNever, kOpen, kLast, kClosed, kOpen},        // middle
    {kNever, kNever, kNever, kClosed, kLast, kClosed, kOpen},      // last
    {kNever, kNever, kNever, kJoined, kNever, kClosed, kOpen},     // joining
    {kMiddle, kLast, kJoining, kJoined, kNever, kClosed, kOpen},   // joined
}};

}  // namespace

std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept {
  return kTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace muster::runtime
