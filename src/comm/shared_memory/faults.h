#pragma once

#include <cstddef>

namespace muster::comm {

/// Explains faults in memory that this process must not write, and that its forked children do not have. While an
/// object of this class exists, an access to that memory, which ends the process, first prints the reason. Other faults
/// go to the previous handler. Thread-safe.
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
