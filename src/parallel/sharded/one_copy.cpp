#include "parallel/sharded/one_copy.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/fnv.h"
#include "comm/shared_tensor.h"
#include "muster/base/error.h"

namespace muster::parallel {

OneCopy::OneCopy(comm::Communicator ranks) : ranks_(std::move(ranks)) {}

int64_t OneCopy::part_multiple(std::size_t element_bytes) const {
  return static_cast<int64_t>(std::max<std::size_t>(comm::part_alignment(ranks_) / element_bytes, 1));
}

/// A rank that fails in a barrier does not know which ranks have passed it and may write, or have written.
void OneCopy::barrier(const char* purpose) {
  try {
    ranks_.with_label({.history_hash = history_hash_, .text = purpose, .source = comm::Source::library}).barrier();
  } catch (const std::exception& error) {
    updating_ = false;
    if (cause_.empty()) cause_ = error.what();
    throw;
  }
}

void OneCopy::begin_update() {
  barrier("parameters before an update");
  updating_ = true;
}

void OneCopy::end_update() {
  barrier("parameters after an update");
  updating_ = false;
}

void OneCopy::tear(const std::string& cause) {
  updating_ = false;
  if (!cause_.empty()) return;
  cause_ = cause;
  ranks_.abort(std::string("MU541") + ": rank " + std::to_string(ranks_.rank()) +
               " failed while the ranks wrote new values to the parameters that they have in common: " + cause);
}

void OneCopy::require_whole() const {
  if (cause_.empty()) return;
  throw CommError(
      "MU540",
      "the parameters that the ranks of this host have in common are not whole: some ranks may have written "
      "new values and others not, since an update failed: " +
          cause_ + ". Start the job again from its last checkpoint");
}

void OneCopy::note(std::string_view use, std::string_view unit) noexcept {
  Fnv1a order(static_cast<uint64_t>(history_hash_));
  history_hash_ = static_cast<int64_t>(order.add_all(use).add_all(unit).add('\0').value());
}

}  // namespace muster::parallel
