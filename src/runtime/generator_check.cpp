#include "generator_check.h"

#include <algorithm>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>

#include "comm/piggyback.h"
#include "format/checksum.h"

namespace muster::runtime {
namespace {

/// Number of steps that are checked. Programs with two optimizers may draw only between every other step.
constexpr int kSteps = 10;

/// A digest of the generator's state, never 0. get_state() returns a copy, so the generator does not change.
uint64_t digest_of_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  return format::checksum_of({static_cast<const char*>(state.const_data_ptr()), state.nbytes()}) | 1;
}

}  // namespace

bool GeneratorCheck::note_step() {
  if (group_.size() == 1 || steps_ == kSteps) return false;
  ++steps_;
  const uint64_t now = digest_of_state();
  const auto heard = comm::attached_piggybacks(group_);
  const bool found = last_digest_ != 0 && now != last_digest_ &&
                     std::all_of(heard.begin(), heard.end(), [&](uint64_t value) { return value == last_digest_; });
  if (found) steps_ = kSteps;
  last_digest_ = steps_ == kSteps ? 0 : now;
  comm::attach_piggyback(group_, last_digest_);
  return found;
}

}  // namespace muster::runtime
