#pragma once

#include <concepts>
#include <initializer_list>
#include <utility>
#include <vector>

namespace muster {

/// One value for all parameter groups of an optimizer, or one for each: 0.1, or {0.1, 0.01}.
template <class T>
class PerGroup {
 public:
  PerGroup() = default;
  template <class U>
    requires std::convertible_to<U, T>
  PerGroup(U&& one) : values_{T(std::forward<U>(one))} {}
  PerGroup(std::initializer_list<T> each) : values_(each) {}
  PerGroup(std::vector<T> each) : values_(std::move(each)) {}
  const std::vector<T>& values() const noexcept { return values_; }

 private:
  std::vector<T> values_;
};

}  // namespace muster
