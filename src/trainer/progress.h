#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "muster/trainer/batch.h"

namespace muster::trainer {

// Why: docs/decisions/0107-what-resuming-continues.md.

/// The position of a run between two batches. A checkpoint stores it to say what remains to do before the next batch.
enum class SavePoint : std::uint8_t {
  none,            ///< nothing remains
  in_batch,        ///< inside a batch, which cannot be continued
  batch_hooks,     ///< everything after the hooks at the end of the batch
  batch_end,       ///< callbacks that save after the batch, then what batch_done has
  batch_done,      ///< a validation, if one is due
  in_validation,   ///< the rest of a validation
  validation_end,  ///< callbacks that save after the validation
  epoch_hooks,     ///< everything after the hooks at the end of the epoch
  epoch_end        ///< callbacks that save after the epoch
};

/// Names of the SavePoints in checkpoints.
inline constexpr std::array<std::string_view, 9> kSavePoints = {"none",           "in batch",    "batch hooks",
                                                                "batch end",      "batch done",  "in validation",
                                                                "validation end", "epoch hooks", "epoch end"};

/// The position of training, which checkpoints store.
struct Progress {
  int64_t batches = 0;      ///< completed batches of the current epoch
  int64_t epoch = 0;        ///< number of the current epoch, from 0
  bool epoch_done = false;  ///< the current epoch is complete except for its last hooks
  int64_t global_step = 0;  ///< number of updates of all optimizers
  bool last_batch = false;  ///< the batch completed last is the last of its epoch
  SavePoint point = SavePoint::none;
  int64_t total_batches = 0;
  BatchPlace validation = {};  ///< next batch of a validation
};

}  // namespace muster::trainer
