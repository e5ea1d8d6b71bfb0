#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace muster::graph {

/// An object whose memory a later Reused<T> of the process takes over, after clear(). New memory would lie between the
/// tensors of a forward or backward, and keep them apart when they are freed.
/// Thread safety: made and destroyed by any thread.
template <class T>
class Reused {
 public:
  Reused() {
    auto& pool = Pool::of_process();
    {
      const base::Lock lock(pool.mutex);
      if (!pool.objects.empty()) {
        object_ = std::move(pool.objects.back());
        pool.objects.pop_back();
        return;
      }
    }
    object_ = std::make_unique<T>();
  }
  ~Reused() {
    object_->clear();
    auto& pool = Pool::of_process();
    const base::Lock lock(pool.mutex);
    pool.objects.push_back(std::move(object_));
  }
  Reused(const Reused&) = delete;
  Reused& operator=(const Reused&) = delete;
  T* operator->() const noexcept { return object_.get(); }
  T& operator*() const noexcept { return *object_; }

 private:
  /// As many objects as were in use at once.
  struct Pool {
    base::Mutex mutex;
    std::vector<std::unique_ptr<T>> objects MUSTER_GUARDED_BY(mutex);

    /// Never destroyed: graphs may be freed until the process has ended.
    static Pool& of_process() {
      [[gnu::used]] static Pool* const pool = new Pool;  // reachable, so that leak checkers do not report it
      return *pool;
    }
  };
  std::unique_ptr<T> object_;
};

}  // namespace muster::graph
