#pragma once

#include <cstddef>

namespace muster::comm {

/// Memory that this process must not write, and that its forked children do not have. While an object of this class
/// lives, an access there that ends the process says why first; other faults go to the handler that was there before.
/// Thread-safe.
class FaultNotice {
 public:
  FaultNotice() = default;
  FaultNotice(const std::byte* data, std::size_t bytes);
  ~FaultNotice();
  FaultNotice(FaultNotice&& other) noexcept;
  FaultNotice& operator=(FaultNotice&& other) noexcept;

 private:
  struct Range;
  friend struct Faults;
  Range* range_ = nullptr;
};

}  // namespace muster::comm
