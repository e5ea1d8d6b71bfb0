#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "muster/trainer/batch.h"

namespace muster::trainer {

/// Where a run is between two batches; a checkpoint says what is left to do there before the next one.
enum class SavePoint : std::uint8_t {
  none,            ///< nothing is left
  in_batch,        ///< inside a batch, which cannot be continued
  batch_hooks,     ///< what follows the hooks at the end of the batch
  batch_end,       ///< callbacks that save after the batch, then as batch_done
  batch_done,      ///< a validation, if one is due
  in_validation,   ///< the rest of a validation
  validation_end,  ///< callbacks that save after the validation
  epoch_hooks,     ///< what follows the hooks at the end of the epoch
  epoch_end        ///< callbacks that save after the epoch
};

/// Their names in checkpoints.
inline constexpr std::array<std::string_view, 9> kSavePoints = {"none",           "in batch",    "batch hooks",
                                                                "batch end",      "batch done",  "in validation",
                                                                "validation end", "epoch hooks", "epoch end"};

/// Where training stands; saved in checkpoints.
struct Progress {
  int64_t batches = 0;      ///< of the current epoch that are done
  int64_t epoch = 0;        ///< the current one, from 0
  bool epoch_done = false;  ///< the current epoch is over but for its last hooks
  int64_t global_step = 0;  ///< updates of all optimizers
  bool last_batch = false;  ///< the batch that was done last is the last of its epoch
  SavePoint point = SavePoint::none;
  int64_t total_batches = 0;
  BatchPlace validation = {};  ///< the next batch of a validation
};

}  // namespace muster::trainer
