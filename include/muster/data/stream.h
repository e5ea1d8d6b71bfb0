#pragma once

#include <algorithm>  // std::ranges::input_range
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/data/detail/batch_maker.h"
#include "muster/tree/detail/collate.h"

/// The interfaces of a stream, one by one; data/stream.h describes them.
namespace muster::data {

namespace detail {
template <class T>
struct Held {};
template <class T>
struct Held<std::optional<T>> : std::type_identity<T> {};
template <class T>
struct HeldList {};
template <class T, class A>
struct HeldList<std::optional<std::vector<T, A>>> : std::type_identity<T> {};
}  // namespace detail

template <class S>
concept pulled_stream = requires(S& s) { typename detail::Held<decltype(s.next())>::type; };

template <class S>
concept range_stream = !pulled_stream<S> && !sized_dataset<S> && requires(S& s) {
  { s(int64_t{}) } -> std::ranges::input_range;
};

template <class S>
concept reset_stream = !pulled_stream<S> && !range_stream<S> && requires(S& s) {
  s.reset();
  typename detail::HeldList<decltype(s.get_batch(size_t{}))>::type;
};

template <class S>
concept stream_dataset = pulled_stream<S> || range_stream<S> || reset_stream<S>;

/// A stream or a map-style dataset that can save and restore its position.
template <class S>
concept stateful_dataset = requires(S& s, const std::string& saved) {
  { s.state() } -> std::convertible_to<std::string>;
  s.load_state(saved);
};

/// One pass over the range of a range_stream; empty for other streams.
template <class S>
struct RangePass {};
template <range_stream S>
struct RangePass<S> {
  using Range = std::invoke_result_t<S&, int64_t>;
  RangePass(S& stream, int64_t epoch) : range(stream(epoch)), at(std::ranges::begin(range)) {}
  Range range;
  std::ranges::iterator_t<Range> at;
};

/// Iterates over a stream of any of the three interfaces.
template <stream_dataset S>
class StreamCursor {
 public:
  explicit StreamCursor(std::shared_ptr<S> stream) : stream_(std::move(stream)) {}
  void start(int64_t epoch) {
    if constexpr (range_stream<S>) range_ = std::make_unique<RangePass<S>>(*stream_, epoch);
    else if constexpr (reset_stream<S>) stream_->reset();
    else if constexpr (requires { stream_->start(epoch); }) stream_->start(epoch);
  }
  auto next() {
    if constexpr (range_stream<S>) {
      std::optional<std::ranges::range_value_t<typename RangePass<S>::Range>> raw;
      if (!range_ || range_->at == std::ranges::end(range_->range)) return raw;
      raw.emplace(*range_->at);
      ++range_->at;
      return raw;
    } else if constexpr (reset_stream<S>) {
      using Raw = typename detail::HeldList<decltype(stream_->get_batch(size_t{}))>::type;
      auto some = stream_->get_batch(size_t{1});
      return some && !some->empty() ? std::optional<Raw>(std::move(some->front())) : std::nullopt;
    } else {
      return stream_->next();
    }
  }

 private:
  std::unique_ptr<RangePass<S>> range_;
  std::shared_ptr<S> stream_;
};

/// The type of a stream's raw samples.
template <class S>
using raw_of_t = typename decltype(std::declval<StreamCursor<S>&>().next())::value_type;

/// One raw sample after the stream's transform, if it has one.
template <class S>
decltype(auto) transformed(const S& stream, const raw_of_t<S>& raw, SampleRandom& random) {
  if constexpr (requires { stream.transform(raw, random); }) return stream.transform(raw, random);
  else if constexpr (requires { stream.transform(raw); }) return stream.transform(raw);
  else return (raw);
}

template <class D>
  requires(stream_dataset<D> && !map_dataset<D>)
struct BatchOf<D> {
  using type = tree::collated_t<decltype(transformed(std::declval<const D&>(), std::declval<const raw_of_t<D>&>(),
                                                     std::declval<SampleRandom&>()))>;
};

template <class Raw>
class RecordsOf final : public Records {
 public:
  void append(const Records& from, int64_t i) override { list.push_back(static_cast<const RecordsOf&>(from).list[i]); }
  std::vector<Raw> list;
};

template <class S>
class StreamReaderOf final : public StreamReader {
 public:
  using Raw = raw_of_t<S>;
  explicit StreamReaderOf(std::shared_ptr<S> stream) : cursor_(stream), stream_(std::move(stream)) {}

  std::unique_ptr<Records> new_records() const override { return std::make_unique<RecordsOf<Raw>>(); }
  std::optional<int64_t> size() const override {
    if constexpr (requires { std::optional<int64_t>(stream_->size()); }) return stream_->size();
    else return std::nullopt;
  }
  void start(int64_t epoch) override { cursor_.start(epoch); }
  bool read(Records& to) override {
    auto raw = cursor_.next();
    if (raw) static_cast<RecordsOf<Raw>&>(to).list.push_back(std::move(*raw));
    return raw.has_value();
  }
  int64_t skip(int64_t n) override {
    if constexpr (requires { stream_->skip(n); }) {
      return stream_->skip(n);
    } else {
      int64_t skipped = 0;
      while (skipped < n && cursor_.next()) ++skipped;
      return skipped;
    }
  }

 private:
  StreamCursor<S> cursor_;
  std::shared_ptr<S> stream_;
};

template <class S, class Batch>
class StreamBatchMaker final : public BatchMaker {
  static_assert(tree::sendable<Batch>,
                "muster cannot send batches of this type, and a stream may be read by one rank for all: add to it "
                "`friend auto tensors_of(T& t) { return std::tie(t.x, t.y); }`; texts are std::string");

 public:
  explicit StreamBatchMaker(std::shared_ptr<S> stream)
      : StreamBatchMaker(stream, std::make_shared<StreamReaderOf<S>>(stream)) {}

  int64_t size() const override { return reader_->size().value_or(-1); }
  std::unique_ptr<BatchBox> new_box() const override { return std::make_unique<BatchBoxOf<Batch>>(); }
  std::shared_ptr<BatchMaker> for_worker() override { return std::make_shared<StreamBatchMaker>(stream_, reader_); }
  std::shared_ptr<StreamReader> stream() const override { return reader_; }

  bool make(const BatchRequest& request, BatchBox& box) override {
    auto& batch = static_cast<BatchBoxOf<Batch>&>(box).batch;
    const auto& records = static_cast<const RecordsOf<raw_of_t<S>>&>(*request.records).list;
    return collate_samples(request, records.size(), batch, [&](int64_t i, int64_t index) -> decltype(auto) {
      auto random = request.random.at(index);
      return transformed(std::as_const(*stream_), records[i], random);
    });
  }

  std::string state() const override {
    if constexpr (stateful_dataset<S>) return stream_->state();
    else return {};
  }
  void load_state(const std::string& saved) override {
    if constexpr (stateful_dataset<S>) stream_->load_state(saved);
  }

  StreamBatchMaker(std::shared_ptr<S> stream, std::shared_ptr<StreamReaderOf<S>> reader)
      : reader_(std::move(reader)), stream_(std::move(stream)) {}

 private:
  std::shared_ptr<StreamReaderOf<S>> reader_;
  std::shared_ptr<S> stream_;
};

template <class D, class Batch>
  requires(stream_dataset<D> && !map_dataset<D>)
struct MakerOf<D, Batch> : std::type_identity<StreamBatchMaker<D, Batch>> {};

}  // namespace muster::data

/// The interfaces of a stream (samples without indices), in the order in which they are tried:
///   std::optional<Raw> next()                              std::nullopt at the end of the pass
///   a function from an epoch to a range of Raw             called for every pass
///   void reset(); std::optional<std::vector<Raw>> get_batch(size_t)   a stateful dataset of torch::data
/// A stream may also have these members, and should if it can:
///   void start(int64_t epoch)                              begins a pass at its first sample; without it, a pass
///                                                          continues where the last one ended
///   size()                                                 samples in a pass, as a number or std::optional of one
///   int64_t skip(int64_t n)                                skips n samples without making them; returns how many
///   std::string state() const; void load_state(const std::string&)   the position; it is loaded after start()
///   Sample transform(const Raw& [, SampleRandom&]) const   run by workers, many at a time; does not change Raw
/// The members that read are called in order, by one thread at a time, with any number of workers. Raw is copyable. See
/// docs/decisions/0032-streams.md.
namespace muster::data {

/// A stream whose samples are transformed by `f`, in the workers if there are any; see map_stream().
template <class S, class F>
class MappedStream {
 public:
  MappedStream(std::shared_ptr<S> stream, F f) : cursor_(stream), f_(std::move(f)), stream_(std::move(stream)) {}
  void start(int64_t epoch) { cursor_.start(epoch); }
  auto next() { return cursor_.next(); }
  auto size() const
    requires requires(const S& s) { s.size(); }
  {
    return stream_->size();
  }
  int64_t skip(int64_t n)
    requires requires(S& s) { s.skip(n); }
  {
    return stream_->skip(n);
  }
  std::string state() const
    requires stateful_dataset<S>
  {
    return stream_->state();
  }
  void load_state(const std::string& saved)
    requires stateful_dataset<S>
  {
    stream_->load_state(saved);
  }
  auto transform(const raw_of_t<S>& raw) const
    requires std::invocable<const F&, const raw_of_t<S>&>
  {
    return f_(raw);
  }
  auto transform(const raw_of_t<S>& raw, SampleRandom& random) const
    requires std::invocable<const F&, const raw_of_t<S>&, SampleRandom&>
  {
    return f_(raw, random);
  }

 private:
  StreamCursor<S> cursor_;
  F f_;
  std::shared_ptr<S> stream_;
};

}  // namespace muster::data

namespace muster {
/// The stream with its transform replaced by f(raw [, SampleRandom&]).
template <data::stream_dataset S, class F>
data::MappedStream<S, F> map_stream(S stream, F f) {
  return {std::make_shared<S>(std::move(stream)), std::move(f)};
}
}  // namespace muster
