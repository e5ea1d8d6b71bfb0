#include "muster/track/trackers.h"

#include <utility>

#include "run.h"

namespace muster {

Trackers::Trackers(const TrackersOptions& options) : run_(std::make_shared<track::Run>(options)) {
  track::finish_at_exit(run_);
}

void Trackers::add(std::span<const LoggedValue> values, std::optional<int64_t> step) const {
  if (run_) run_->add(track::Record::Kind::values, only_, values, step);
}

void Trackers::add_hyperparams(std::span<const LoggedValue> values) const {
  if (run_) run_->add(track::Record::Kind::hyperparams, only_, values, 0);
}

void Trackers::log_artifact(const std::filesystem::path& file, const std::string& name) const {
  if (run_) run_->add_artifact(only_, file, name);
}

Trackers Trackers::get_tracker(std::string_view name) const {
  auto one = *this;
  if (run_) one.only_ = run_->index_of(name);
  return one;
}

std::filesystem::path Trackers::folder() const { return run_ ? run_->folder() : std::filesystem::path(); }

bool Trackers::flush() const { return !run_ || run_->flush(); }

void Trackers::finish(RunStatus status) const {
  if (run_) run_->finish(status);
}

}  // namespace muster
