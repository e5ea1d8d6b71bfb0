#include "generator_check.h"

#include <algorithm>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>

#include "comm/piggyback.h"
#include "format/checksum.h"

namespace muster::runtime {
namespace {

/// Programs of two optimizers may draw between every other step only.
constexpr int kSteps = 10;

/// Never 0. get_state() returns a copy; the generator stays as it is.
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
