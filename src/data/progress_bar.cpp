#include "muster/data/progress_bar.h"

namespace muster::data {

std::shared_ptr<muster::Progress> start_progress(const std::string& title, int64_t total,
                                                 const ProgressOptions& options) {
  return std::make_shared<muster::Progress>(title, total, options);
}
void advance(muster::Progress& progress) { progress.advance(1); }
void finish(muster::Progress& progress) { progress.finish(); }
void set(muster::Progress& progress, std::string_view name, double value) { progress.set(name, value); }
void set(muster::Progress& progress, std::string_view name, std::string_view text) { progress.set(name, text); }
void skip(muster::Progress& progress, int64_t count) { progress.skip(count); }

}  // namespace muster::data
