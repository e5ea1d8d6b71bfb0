#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace muster::parallel {

/// The order in which the last pass, forward or backward, used the units of a model, and how far the current pass has
/// followed it. Ranks that run one program have equal orders, so they start equal collectives.
class ExecutionOrder {
 public:
  /// A pass begins.
  void begin();
  /// The pass moved to this unit from another one.
  void came_to(size_t unit);
  /// The unit that the last pass used `ahead` places after the next one (0: the next one); nullopt if the current pass
  /// has deviated.
  std::optional<size_t> coming(size_t ahead) const;
  /// The pass is complete. The next one is expected to follow it.
  void end();

 private:
  std::vector<size_t> last_, now_;
  size_t at_ = 0;
  bool lost_ = false;
};

}  // namespace muster::parallel
