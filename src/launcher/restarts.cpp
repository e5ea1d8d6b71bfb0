#include "restarts.h"

#include "base/log.h"
#include "base/text.h"

namespace muster::launcher {
namespace {

using log::str;
using std::chrono::milliseconds;

constexpr milliseconds kSoon{60000};    // a round without steps that ends sooner failed too soon
constexpr int kMaxTooSoon = 4;          // rounds in a row that may fail too soon
constexpr std::size_t kMostLines = 20;  // limit on the causes in the summary

}  // namespace

std::optional<milliseconds> Restarts::next(const Failure& failure) {
  causes_.push_back(failure.what);
  too_soon_ = failure.made_steps || failure.after >= kSoon ? 0 : too_soon_ + 1;
  refused_ = count_ >= max_restarts_ || too_soon_ >= kMaxTooSoon;
  if (refused_) return std::nullopt;
  ++count_;
  wait_ = milliseconds(too_soon_ > 1 ? 1000 << (too_soon_ - 2) : 0);
  return wait_;
}

std::string Restarts::announcement() const {
  return str("all ranks are started again", wait_.count() > 0 ? " in " + seconds_text(wait_) : "", " (restart ", count_,
             " of ", max_restarts_, ")");
}

std::vector<std::string> Restarts::summary() const {
  if (max_restarts_ == 0 || causes_.empty()) return {};
  std::vector<std::string> lines;
  if (refused_ && too_soon_ >= kMaxTooSoon)
    lines.push_back(str("MU471", ": the job is not restarted again: each of the last ", kMaxTooSoon,
                        " rounds failed soon, before its first step"));
  else if (refused_) lines.push_back(str("the job is not restarted again: max restarts is ", max_restarts_));
  const auto times = counted(static_cast<std::int64_t>(causes_.size()), "time");
  const auto first = causes_.size() > kMostLines ? causes_.size() - kMostLines : 0;
  lines.push_back(str("the job failed ", times, first > 0 ? str("; the last ", kMostLines) : "", ":"));
  for (auto i = first; i < causes_.size(); ++i) lines.push_back(str("  ", i + 1, ". ", causes_[i]));
  return lines;
}

std::string one_line(const RootCause& cause) {
  const auto what = headline(cause, {}), error = cause.error_message.substr(0, cause.error_message.find('\n'));
  return error.empty() ? what : str(what, ": ", error);
}

}  // namespace muster::launcher
