#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/data/detail/batch_maker.h"
#include "muster/data/detail/stream_cursor.h"
#include "muster/data/detail/stream_reader.h"

namespace muster::data {

template <class Raw>
class RecordsOf final : public Records {
 public:
  int64_t size() const override { return static_cast<int64_t>(list.size()); }
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
 public:
  explicit StreamBatchMaker(std::shared_ptr<S> stream)
      : StreamBatchMaker(stream, std::make_shared<StreamReaderOf<S>>(stream)) {}

  int64_t size() const override { return reader_->size().value_or(-1); }
  std::unique_ptr<BatchBox> new_box() const override { return std::make_unique<SendableBox<Batch>>(); }
  std::shared_ptr<BatchMaker> for_worker() override { return std::make_shared<StreamBatchMaker>(stream_, reader_); }
  std::shared_ptr<StreamReader> stream() const override { return reader_; }

  bool make(const BatchRequest& request, BatchBox& box) override {
    auto& batch = static_cast<SendableBox<Batch>&>(box).batch;
    const auto& records = static_cast<const RecordsOf<raw_of_t<S>>&>(*request.records).list;
    tree::StackPlace place{.count = static_cast<int64_t>(records.size()), .pinned = request.pinned};
    for (; place.index < place.count; ++place.index) {
      if (request.stop && request.stop->load(std::memory_order_relaxed)) return false;
      const int64_t index = request.indices[place.index];
      try {
        auto random = request.random.at(index);
        request.random.seed_operators(index);
        decltype(auto) sample = transformed(std::as_const(*stream_), records[place.index], random);
        using Sample = std::remove_cvref_t<decltype(sample)>;
        if (!batch) emplace_like(batch, sample);
        tree::collate_into<Sample>(*batch, sample, place);
      } catch (...) {
        throw_dataset_error(index, false);
      }
    }
    return true;
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
struct MakerOf<D, Batch> {
  using type = StreamBatchMaker<D, Batch>;
};

}  // namespace muster::data
