#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "device/order.h"
#include "muster/precision/grad_scaler.h"

namespace muster::runtime {

/// What is known of an optimizer's last step.
enum class StepState : uint8_t {
  made,       ///< it was made, or there was none yet
  skipped,    ///< it was skipped
  undecided,  ///< a device decides, and the host has not read its flag; no update was made
  updated     ///< as undecided, and the update was made unless the flag skipped it
};

/// Whether an optimizer makes its steps. The host decides, or a device, which finds an infinite or NaN gradient
/// (GradScaler's found_inf) or a norm that is not finite. The host learns of a device's decision when the next step
/// begins, or when it asks. Until then the flag is on its way to pinned memory, so a whole forward and backward hide
/// the wait. Thread safety: one thread at a time. Why: docs/decisions/0142-a-step-is-known-when-the-next-one-begins.md.
class StepDecision {
 public:
  /// A device's decision about the last step.
  struct Known {
    bool skipped = false;
    bool undone = false;                                ///< an update was made, and the flag skipped it
    std::optional<std::pair<double, double>> bad_norm;  ///< an infinite or NaN norm to report, and its order
    std::optional<GradScalerState> scaler;
  };

  // Requests to skip the next step.

  /// Skips the next step.
  void skip_next() noexcept { skip_next_ = true; }
  /// Skips the next step if this flag, a float32 of one element on a device, is 1.
  void skip_if(const at::Tensor& flag);
  /// Skips the next step if the norm is not finite, and wait() then reports it; of several such norms, the first.
  void report(const at::Tensor& norm, double order);
  /// Whether there is such a request; the host waits for a device.
  bool skip_is_requested() const;
  /// Forgets all requests, since the gradients are gone. The host waits if there is a norm to report. Returns a norm
  /// that is not finite, and its order.
  std::optional<std::pair<double, double>> drop();
  /// Forgets all requests without a report: the gradients are replaced by others.
  void forget();

  // The decision about a step.

  /// Sends the flags of this step to the host, and leaves the step undecided. `found` and `scaler` are
  /// DeviceGradScaler's, or undefined. Returns the flag of the step, undefined if no device can make it skip. Then
  /// skipped() is still that of the step before, until decide().
  at::Tensor send(const at::Tensor& found, const at::Tensor& scaler);
  /// Takes the request of skip_next(): whether there was one.
  bool take_skip_next() noexcept { return std::exchange(skip_next_, false); }
  /// The host has decided. Requires: the step is not pending.
  void decide(bool skipped) noexcept { state_ = skipped ? StepState::skipped : StepState::made; }
  /// An update is made that the flag of send() skips. Requires: the step is pending.
  void note_update() noexcept { state_ = StepState::updated; }

  /// True while a device's decision about the last step is unknown.
  bool pending() const noexcept { return state_ == StepState::undecided || state_ == StepState::updated; }
  /// Whether the last step was skipped. Requires: it is not pending.
  bool skipped() const noexcept { return state_ == StepState::skipped; }
  /// The device's decision about the last step; the host waits for it. Requires: the step is pending.
  Known wait();
  /// Registers a call for when the decision is known.
  void then(std::function<void()> call) { calls_.push_back(std::move(call)); }
  bool has_calls() const noexcept { return !calls_.empty(); }
  std::vector<std::function<void()>> take_calls() { return std::exchange(calls_, {}); }

 private:
  bool skip_next_ = false;
  at::Tensor flag_, norm_;  // requests on a device; `norm_`: a norm, and its order
  StepState state_ = StepState::made;
  at::Tensor on_host_;                   // the flag of the last step and what was sent with it
  int64_t norm_at_ = 0, scaler_at_ = 0;  // their places in on_host_; 0: not sent
  device::Event sent_;
  std::vector<std::function<void()>> calls_;
};

}  // namespace muster::runtime
