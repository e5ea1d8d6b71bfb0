#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "batch_order.h"
#include "muster/data/detail/batch_maker.h"
#include "muster/data/detail/stream_reader.h"
#include "shard_plan.h"

namespace muster::data {

// Why: docs/decisions/0032-streams.md.

/// The samples of a stream, distributed as by ShardPlan although the end is not known in advance: reading is one step
/// ahead, and the first samples are kept if the last step may need padding. Every rank reads the stream and skips the
/// samples of other ranks. With BatchSharding::dispatch this rank reads for all ranks: batch `step * world + i` is rank
/// i + 1's part of the step, and this rank's part comes last.
class StreamOrder : public BatchOrder {
 public:
  struct Settings {
    BatchSharding sharding;  ///< sharding of the pass; its size is not used
    int64_t first_step = 0;
    EpochRandom random;
    std::string state;  ///< state of a stateful stream at the first step
  };
  StreamOrder(std::shared_ptr<BatchMaker> maker, Settings settings);
  bool random_access() const override { return false; }
  bool prepare(int64_t batch, BatchContent& content) override;

 private:
  struct Step {
    std::unique_ptr<Records> kept;  ///< samples of the step that this rank needs
    int64_t number = 0;
    int64_t real = 0;
    std::string state;
  };
  int64_t start_of(int64_t step) const { return settings_.sharding.offset + step * step_size_; }
  ShardPlan plan(int rank, const Step& step) const;
  bool has_part(int rank, const Step& step) const;
  bool start(const std::atomic<bool>* stop);
  void read_step(int64_t number, const std::atomic<bool>* stop);
  bool read_one(Records& to);
  bool skip_to(int64_t position, const std::atomic<bool>* stop);
  void take_part(int rank, BatchContent& content) const;

  bool ended_ = false;
  std::exception_ptr failed_;      // exception from reading ahead
  int64_t from_, to_;              // range of a step that this rank keeps
  std::unique_ptr<Records> head_;  // samples that padding repeats
  int64_t head_size_ = 0;
  std::shared_ptr<BatchMaker> maker_;
  std::optional<Step> next_, now_;
  int64_t position_ = 0;  // number of samples read or skipped
  std::shared_ptr<StreamReader> reader_;
  Settings settings_;
  bool started_ = false;
  int64_t step_size_;
};

}  // namespace muster::data
