#include "optim/direct_step.h"

#include <algorithm>
#include <cstring>

namespace muster::optim {
namespace {

constexpr size_t kSamples = 4;

// Every operator that writes in place counts the version up, so it says whether something other than us stepped.
uint32_t version_of(const Slot& slot) { return slot.impl->version_counter().current_version(); }

}  // namespace

void DirectStepWatch::note(const std::vector<Slot>& slots, bool values) {
  forget();
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& slot = slots[i];
    const auto& gradient = slot.impl->grad();
    if (!slot.whole || !gradient.defined()) continue;
    marks_.push_back({i, version_of(slot)});
    if (!values || samples_.size() == kSamples || !slot.parameter.device().is_cpu()) continue;
    if (gradient.layout() != at::kStrided || !gradient.is_non_overlapping_and_dense() ||
        !slot.parameter.is_non_overlapping_and_dense())
      continue;
    Sample sample{i, std::min(kSampleBytes, gradient.nbytes()), {}};
    const auto* begin = static_cast<const char*>(gradient.const_data_ptr());
    // Where the gradient is zero an update may leave the value as it is.
    if (std::all_of(begin, begin + sample.bytes, [](char c) { return c == 0; })) continue;
    std::memcpy(sample.values.data(), slot.parameter.const_data_ptr(), sample.bytes);
    samples_.push_back(sample);
  }
}

void DirectStepWatch::forget() noexcept {
  marks_.clear();
  samples_.clear();
}

bool DirectStepWatch::changed(const Slot& slot, const Mark& mark) { return version_of(slot) != mark.version; }

bool DirectStepWatch::changed(const Slot& slot, const Sample& sample) {
  return std::memcmp(slot.parameter.const_data_ptr(), sample.values.data(), sample.bytes) != 0;
}

bool DirectStepWatch::moved(const std::vector<Slot>& slots) const {
  const auto all = [&](const auto& notes) {
    return !notes.empty() &&
           std::all_of(notes.begin(), notes.end(), [&](const auto& note) { return changed(slots[note.slot], note); });
  };
  return all(marks_) || all(samples_);
}

bool DirectStepWatch::touched(const std::vector<Slot>& slots) const {
  const auto any = [&](const auto& notes) {
    return std::any_of(notes.begin(), notes.end(), [&](const auto& note) { return changed(slots[note.slot], note); });
  };
  return any(marks_) || any(samples_);
}

}  // namespace muster::optim
