#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>

#include "muster/data/detail/batch_box.h"
#include "muster/data/detail/loader_state.h"

namespace muster::data {

/// The iterator of a DataLoader. Owns its pass: destroying it (break, return, an exception) ends the pass and its
/// threads.
template <class Batch>
class BatchIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  BatchIterator() = default;
  explicit BatchIterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { ++*this; }
  BatchIterator(BatchIterator&&) noexcept = default;
  BatchIterator& operator=(BatchIterator&&) noexcept = default;

  Batch& operator*() const { return *batch_; }
  Batch* operator->() const { return batch_; }
  BatchIterator& operator++() {
    auto* box = pass_->next();
    batch_ = box ? &*static_cast<BatchBoxOf<Batch>*>(box)->batch : nullptr;
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const BatchIterator& it, std::default_sentinel_t) { return it.batch_ == nullptr; }

 private:
  Batch* batch_ = nullptr;
  std::unique_ptr<Pass> pass_;
};

}  // namespace muster::data
