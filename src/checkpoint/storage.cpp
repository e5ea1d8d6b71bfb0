#include "muster/checkpoint/storage.h"

namespace muster {

void CheckpointStorage::begin(const PendingCheckpoint&) {}
void CheckpointStorage::discard(const PendingCheckpoint&) {}

}  // namespace muster
