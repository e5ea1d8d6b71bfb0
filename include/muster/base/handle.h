#pragma once

#include <memory>
#include <utility>

namespace muster {

/// The types of handles, which prepare() returns.
enum class HandleType { data_loader, model, optimizer, scheduler };

/// Throws: UsageError (MU322), always.
[[noreturn]] void refuse_empty_handle(HandleType type);

/// The state that copies of a handle share; empty in a handle that was default-constructed or moved from. T may be
/// incomplete.
/// Throws: UsageError (MU322) for every access to an empty handle.
template <HandleType type, class T>
class Shared {
 public:
  Shared() = default;
  explicit Shared(std::shared_ptr<T> target) : target_(std::move(target)) {}

  T* operator->() const { return pointer().get(); }
  T& operator*() const { return *pointer(); }
  const std::shared_ptr<T>& pointer() const {
    if (!target_) refuse_empty_handle(type);
    return target_;
  }
  explicit operator bool() const noexcept { return target_ != nullptr; }

 private:
  std::shared_ptr<T> target_;
};

}  // namespace muster
