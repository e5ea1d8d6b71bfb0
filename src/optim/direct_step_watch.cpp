#include "optim/direct_step_watch.h"

#include <algorithm>
#include <cstring>

namespace muster::optim {
namespace {

constexpr size_t kSamples = 4;

// Every in-place operator increments the version, so a new version shows that other code made a step.
uint32_t version_of(const ParameterEntry& entry) { return entry.impl->version_counter().current_version(); }

}  // namespace

void DirectStepWatch::note(const std::vector<ParameterEntry>& entries, bool values) {
  clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const auto& gradient = entry.impl->grad();
    if (!entry.whole || !gradient.defined()) continue;
    marks_.push_back({i, version_of(entry)});
    if (!values || samples_.size() == kSamples || !entry.parameter.device().is_cpu()) continue;
    if (gradient.layout() != at::kStrided || !gradient.is_non_overlapping_and_dense() ||
        !entry.parameter.is_non_overlapping_and_dense())
      continue;
    Sample sample{i, std::min(kSampleBytes, gradient.nbytes()), {}};
    const auto* begin = static_cast<const char*>(gradient.const_data_ptr());
    // Where the gradient is zero, an update may leave the value unchanged.
    if (std::all_of(begin, begin + sample.bytes, [](char c) { return c == 0; })) continue;
    std::memcpy(sample.values.data(), entry.parameter.const_data_ptr(), sample.bytes);
    samples_.push_back(sample);
  }
}

void DirectStepWatch::clear() noexcept {
  marks_.clear();
  samples_.clear();
}

bool DirectStepWatch::changed(const ParameterEntry& entry, const Mark& mark) {
  return version_of(entry) != mark.version;
}

bool DirectStepWatch::changed(const ParameterEntry& entry, const Sample& sample) {
  return std::memcmp(entry.parameter.const_data_ptr(), sample.values.data(), sample.bytes) != 0;
}

bool DirectStepWatch::all_changed(const std::vector<ParameterEntry>& entries) const {
  const auto all = [&](const auto& notes) {
    return !notes.empty() && std::all_of(notes.begin(), notes.end(),
                                         [&](const auto& note) { return changed(entries[note.entry], note); });
  };
  return all(marks_) || all(samples_);
}

bool DirectStepWatch::any_changed(const std::vector<ParameterEntry>& entries) const {
  const auto any = [&](const auto& notes) {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const auto& note) { return changed(entries[note.entry], note); });
  };
  return any(marks_) || any(samples_);
}

}  // namespace muster::optim
