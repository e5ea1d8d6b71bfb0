#include "muster/data/sampler.h"

#include "permutation.h"

namespace muster {

void RandomSampler::start(int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
}

int64_t RandomSampler::next() { return data::Permutation(size_, seed_, epoch_)(position_++); }

}  // namespace muster
