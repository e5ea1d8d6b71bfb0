#pragma once

#include <memory>

#include <c10/core/DeviceType.h>

#include "muster/precision/options.h"

namespace muster {

/// How an autocast scope differs from the settings of the precision.
struct AutocastOptions {
  bool cache_enabled = true;  ///< keep the cast copies of weights until the outermost scope closes
  bool enabled = true;        ///< off: operators run in the dtype of their inputs, also inside an autocast scope
};

namespace precision {
/// Turns autocast on or off for one device type, until the scope is destroyed. Scopes nest; the cast copies of weights
/// are dropped when the outermost one closes. Thread safety: belongs to the thread that made it.
class [[nodiscard("name the scope: auto cast = ...")]] AutocastScope {
 public:
  /// Does nothing for a precision that is not mixed, unless it switches autocast off. A custom policy also enters its
  /// forward scope, unless autocast is switched off.
  /// Throws: what enter_forward() of a custom policy throws; autocast then stays as it was.
  AutocastScope(const Precision& precision, c10::DeviceType device, const AutocastOptions& options = {});
  ~AutocastScope();

 private:
  class Entered;
  std::unique_ptr<Entered> entered_;
};
}  // namespace precision

}  // namespace muster
