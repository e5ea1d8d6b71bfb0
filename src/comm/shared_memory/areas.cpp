#include "comm/shared_memory/areas.h"

#include <cstring>

namespace muster::comm {

void SharedAreas::write_cause(const std::string& cause) noexcept {
  Control& own = control(rank_);
  if (own.ended.load(std::memory_order_relaxed)) return;
  own.cause_bytes = static_cast<uint32_t>(std::min(cause.size(), Control::kCauseBytes));
  std::memcpy(own.cause, cause.data(), own.cause_bytes);
  own.ended.store(1, std::memory_order_release);
}

int SharedAreas::aborting_rank(int first) const noexcept {
  const auto has_ended = [this](int rank) {
    return rank != rank_ && control(rank).ended.load(std::memory_order_acquire) != 0;
  };
  if (first >= 0 && has_ended(first)) return first;
  for (int rank = 0; rank < size(); ++rank)
    if (has_ended(rank)) return rank;
  return -1;
}

TransportFailure SharedAreas::cause_of(int peer) const {
  const Control& theirs = control(peer);
  return {TransportFailure::Kind::aborted, peer,
          std::string(theirs.cause, std::min<std::size_t>(theirs.cause_bytes, Control::kCauseBytes))};
}

}  // namespace muster::comm
