#include "runtime/window_position.h"

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

}  // namespace muster::runtime
