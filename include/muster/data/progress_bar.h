#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "muster/data/data_loader.h"
#include "muster/track/progress.h"

namespace muster {

namespace data {

/// This rank's number, from the split of the (first) loader.
template <class L>
int rank_of(const L& loader) {
  if constexpr (requires { loader.state(); }) return loader.state()->rank();
  else return std::get<0>(loader.loaders()).state()->rank();
}

/// The number of batches in a pass; -1 for a stream of unknown length.
template <class L>
int64_t batches_of(const L& loader) {
  if constexpr (requires { loader.known_size(); }) {
    return loader.known_size().value_or(-1);
  } else {
    const bool known =
        std::apply([](const auto&... one) { return (one.known_size().has_value() && ...); }, loader.loaders());
    return known ? loader.size() : -1;
  }
}

/// The number of batches that a loaded position skipped; valid once the pass has its first batch.
template <class L>
int64_t skipped_by(const L& loader) {
  if constexpr (requires { loader.num_yielded(); }) return loader.num_yielded() > 0 ? loader.num_yielded() - 1 : 0;
  else return 0;
}

}  // namespace data

/// A loader with a progress bar: `for (auto& [image, label] : bar)` gives the loader's batches. Each pass draws one
/// bar. Thread safety: one thread at a time; one pass at a time.
template <class L>
class ProgressBar {
 public:
  class iterator;

  ProgressBar(L loader, std::string title, ProgressOptions options)
      : loader_(std::move(loader)), options_(std::move(options)), title_(std::move(title)) {}

  iterator begin() {
    progress_ = std::make_shared<Progress>(title_, data::batches_of(loader_), options_);
    iterator first(loader_.begin(), progress_);
    progress_->skip(data::skipped_by(loader_));
    return first;
  }
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Shows a metric for the rest of this pass. Does nothing between passes.
  void set(std::string_view name, double value) {
    if (progress_) progress_->set(name, value);
  }
  void set(std::string_view name, std::string_view text) {
    if (progress_) progress_->set(name, text);
  }

 private:
  L loader_;
  ProgressOptions options_;
  std::shared_ptr<Progress> progress_;
  std::string title_;
};

/// The loader's iterator, which also counts. Destroying it (break, an exception) ends the bar.
template <class L>
class ProgressBar<L>::iterator {
 public:
  using inner = decltype(std::declval<const L&>().begin());
  using value_type = typename inner::value_type;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  iterator(inner at, std::shared_ptr<Progress> progress) : at_(std::move(at)), progress_(std::move(progress)) {}
  iterator(iterator&&) noexcept = default;
  iterator& operator=(iterator&&) noexcept = default;
  ~iterator() {
    if (progress_) progress_->finish();
  }

  decltype(auto) operator*() const { return *at_; }
  iterator& operator++() {
    progress_->advance(1);
    ++at_;
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const iterator& it, std::default_sentinel_t end) { return it.at_ == end; }

 private:
  inner at_;
  std::shared_ptr<Progress> progress_;
};

/// Returns a range over the loader's batches that shows a bar on stderr: the share done, the rate, the time left, and
/// the metrics given to set(). Prints plain lines if stderr is not a terminal. Only the main rank of a prepared loader
/// shows it.
///
///     auto bar = muster::progress(batches, "epoch 1");
///     for (auto& [image, label] : bar) bar.set("loss", train_step(image, label));
template <class L>
ProgressBar<L> progress(const L& loader, std::string title = {}, ProgressOptions options = {}) {
  options.quiet = options.quiet || data::rank_of(loader) != 0;
  return {loader, std::move(title), std::move(options)};
}

}  // namespace muster
