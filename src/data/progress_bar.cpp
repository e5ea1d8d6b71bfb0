#include "muster/data/detail/progress_bar.h"

#include "muster/track/progress.h"

namespace muster::data {

std::shared_ptr<Progress> start_progress(const std::string& title, int64_t total, const ProgressOptions& options) {
  return std::make_shared<Progress>(title, total, options);
}
void advance(Progress& progress) { progress.advance(1); }
void finish(Progress& progress) { progress.finish(); }
void set(Progress& progress, std::string_view name, double value) { progress.set(name, value); }
void set(Progress& progress, std::string_view name, std::string_view text) { progress.set(name, text); }
void skip(Progress& progress, int64_t count) { progress.skip(count); }

}  // namespace muster::data
