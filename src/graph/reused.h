#pragma once

#include <memory>
#include <utility>

namespace muster::graph {

/// An object whose memory the thread's next Reused<T> takes over, after clear(). New memory would lie between the
/// tensors of a forward or backward, and keep them apart when they are freed. One within another has its own object.
template <class T>
class Reused {
 public:
  Reused() : object_(spare() ? std::move(spare()) : std::make_unique<T>()) {}
  ~Reused() {
    object_->clear();
    spare() = std::move(object_);
  }
  Reused(const Reused&) = delete;
  Reused& operator=(const Reused&) = delete;
  T* operator->() const noexcept { return object_.get(); }

 private:
  static std::unique_ptr<T>& spare() {
    thread_local std::unique_ptr<T> object;
    return object;
  }
  std::unique_ptr<T> object_;
};

}  // namespace muster::graph
