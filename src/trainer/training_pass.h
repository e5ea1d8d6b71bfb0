#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/trainer/detail/feed.h"

namespace muster::trainer {

/// The prepared loaders of one kind of step.
struct PreparedFeed {
  Feed feed = {};
  std::vector<std::shared_ptr<data::LoaderState>> loaders = {};
  bool made = false;
};

/// Batches of this rank in a pass over the longest loader; nullopt if one of them has no known size.
std::optional<int64_t> batches_in(const PreparedFeed& feed);

/// One pass over the batches of training: of one loader, or of several side by side until the longest ends.
class TrainingPass {
 public:
  /// `returned`: batches of the pass before it was interrupted.
  TrainingPass(PreparedFeed& feed, int64_t returned);
  /// The next batch, valid until the next call; nullptr at the end.
  void* next();
  /// Whether the current batch is the last one, as far as that is known.
  bool at_end() const;

 private:
  PreparedFeed& feed_;
  std::vector<std::unique_ptr<data::Pass>> passes_;
  std::vector<bool> ended_;
  std::optional<int64_t> length_;
  int64_t returned_ = 0;
};

}  // namespace muster::trainer
