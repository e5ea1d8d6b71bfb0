#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/order.h"
#include "muster/precision/grad_scaler.h"

namespace muster::runtime {

/// Whether a step on a device found an infinite or NaN gradient, as GradScaler's found_inf, or a norm that had to be
/// finite. The host learns of it when the next step begins, or when it is asked. Meanwhile the flag is on its way to
/// pinned memory, so that a whole forward and backward hides the wait.
/// Thread safety: one thread at a time.
class FoundInf {
 public:
  struct Known {
    bool skipped = false;
    std::optional<std::pair<double, double>> bad_norm;  ///< infinite or NaN, to be reported; and its order
    std::optional<GradScalerState> scaler;
  };

  /// The next step is skipped if this flag, a float32 of one element on a device, is 1.
  void skip_if(const at::Tensor& flag);
  /// The same, if the norm is not finite, which known() then reports; of several the first such.
  void report(const at::Tensor& norm, double order);
  /// What skip_if() and report() said is void, since the gradients are gone. The host waits if there is a norm to
  /// report. Returns one that is not finite, and its order.
  std::optional<std::pair<double, double>> drop();
  /// The same, and nothing is reported: the gradients are replaced by others.
  void forget() {
    flag_.reset();
    norm_.reset();
  }
  /// Sends the flags of this step to the host. `found` and `scaler`: as DeviceGradScaler's, or undefined. Returns the
  /// flag of the step, undefined if nothing may leave it out.
  at::Tensor send(const at::Tensor& found, const at::Tensor& scaler);
  /// Whether the last step is not known yet.
  bool pending() const noexcept { return pending_; }
  /// The host waits.
  Known known();
  /// Called once the step is known.
  void then(std::function<void()> call) { calls_.push_back(std::move(call)); }
  bool has_calls() const noexcept { return !calls_.empty(); }
  std::vector<std::function<void()>> take_calls() { return std::exchange(calls_, {}); }

 private:
  at::Tensor flag_, norm_;  // a norm, and its order
  bool scales_ = false;
  bool reports_ = false;
  bool pending_ = false;
  at::Tensor on_host_;
  device::Event sent_;
  std::vector<std::function<void()>> calls_;
};

}  // namespace muster::runtime
