#pragma once

#include "muster/parallel/detail/local_sgd.h"
#include "muster/precision/detail/in_fp32.h"
#include "muster/runtime/detail/batch_size_search.h"
#include "muster/runtime/detail/logger.h"
#include "muster/runtime/detail/saved_item.h"
#include "muster/runtime/detail/split.h"
#include "muster/runtime/detail/training.h"

/// What accelerator.h and fabric.h only declare, because few programs use it: named items for save() and load(),
/// logger(), split_between_processes(), find_executable_batch_size(), local_sgd() and
/// in_fp32().
namespace muster::runtime {

template <class M>
LocalSGD Training::local_sgd(const Model<M>& model, const LocalSgdOptions& options) const {
  return LocalSGD(group_of(*session_), model, options);
}

}  // namespace muster::runtime
