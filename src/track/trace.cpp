#include "muster/track/trace.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace muster {
namespace {

double microseconds(Trace::Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

nlohmann::json name_event(const char* kind, int rank, int64_t track, const std::string& name) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

void Trace::start() {
  std::lock_guard lock(mutex_);
  spans_.clear();
  on_.store(true, std::memory_order_relaxed);
}

void Trace::add(Span span) {
  if (!on()) return;
  std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<Trace::Span> Trace::spans() const {
  std::lock_guard lock(mutex_);
  return spans_;
}

std::string chrome_events(const std::vector<Trace::Span>& spans, int rank, Trace::Clock::time_point origin) {
  std::string text = name_event("process_name", rank, 0, "rank " + std::to_string(rank)).dump();
  std::vector<std::string> tracks;
  for (const auto& span : spans) {
    auto track = std::find(tracks.begin(), tracks.end(), span.track);
    if (track == tracks.end()) {
      text += ",\n" + name_event("thread_name", rank, std::ssize(tracks), span.track).dump();
      track = tracks.insert(track, span.track);
    }
    nlohmann::json event{{"ph", "X"},
                         {"name", span.name},
                         {"pid", rank},
                         {"tid", track - tracks.begin()},
                         {"ts", microseconds(span.begin - origin)},
                         {"dur", microseconds(span.end - span.begin)}};
    if (span.bytes >= 0) event["args"]["bytes"] = span.bytes;
    text += ",\n" + event.dump();
  }
  return text;
}

}  // namespace muster
