#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "muster/data/detail/stream_maker.h"

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
