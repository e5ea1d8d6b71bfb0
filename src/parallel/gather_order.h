#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace muster::parallel {

/// The order in which a pass, forward or backward, came to the units of a model last time, and how far the present one
/// has followed it. Ranks that run the same program give equal answers, so what they start by them agrees too.
class GatherOrder {
 public:
  /// A pass begins.
  void begin();
  /// The pass came to this unit from another one.
  void came_to(size_t unit);
  /// Where the last pass went then, `ahead` further places on (0: the next one); nothing if the present pass went elsewhere.
  std::optional<size_t> coming(size_t ahead) const;
  /// The pass has ended well: it is what the next one is expected to do.
  void end();

 private:
  std::vector<size_t> last_, now_;
  size_t at_ = 0;
  bool lost_ = false;
};

}  // namespace muster::parallel
