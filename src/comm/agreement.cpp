#include "agreement.h"

#include <exception>

#include <ATen/ops/tensor.h>

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

// The first character of a message between ranks.
constexpr char kReturned = '+', kThrew = '!', kThrewCheckpointError = '?';

struct Outcome {
  std::exception_ptr error;
  std::string message;
};

Outcome outcome_of(const std::function<std::string()>& f) {
  const auto threw = [](const std::string& id, const std::string& message, char kind = kThrew) {
    return Outcome{std::current_exception(), kind + id + ':' + message};
  };
  try {
    return {nullptr, kReturned + f()};
  } catch (const CheckpointError& error) {
    return threw(error.id(), error.message(), kThrewCheckpointError);
  } catch (const Error& error) {
    return threw(error.id(), error.message());
  } catch (const std::exception& error) {
    return threw({}, error.what()[0] ? error.what() : "an exception without words");
  } catch (...) {
    return threw({}, kNoStdException);
  }
}

/// The result that f returned on that rank.
std::string result_in(const std::string& message, std::size_t rank, const Communicator& group, const Raise& raise) {
  const bool of_checkpoint = message.starts_with(kThrewCheckpointError);
  if (!of_checkpoint && !message.starts_with(kThrew)) return message.substr(std::min<std::size_t>(1, message.size()));
  const auto colon = message.find(':');
  const auto in_group = static_cast<int>(rank);
  const Failure failure{message.substr(1, colon - 1), message.substr(colon + 1), job_rank(group, in_group),
                        of_checkpoint};
  report_lost_rank(group, in_group, failure.text());
  raise(failure);
  raise_failure(failure);
}

/// A failure of this rank takes precedence over the loss of the group, which often follows from it.
template <class Exchange>
auto exchanged(const Outcome& own, Exchange&& exchange) {
  decltype(exchange()) all;
  try {
    all = exchange();
  } catch (...) {
    if (!own.error) throw;
  }
  if (own.error) std::rethrow_exception(own.error);
  return all;
}

std::string line_or_none(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? lines[i] : formatted("nothing more ({} in all)", lines.size());
}

}  // namespace

void raise_failure(const Failure& failure) {
  const auto rank = std::to_string(failure.rank);
  if (failure.of_checkpoint) throw CheckpointError(failure.id, failure.message + " (found by rank " + rank + ")");
  throw UsageError("MU176", "rank " + rank + " failed in what all ranks do together: " + failure.text());
}

std::vector<std::string> all_gather_result(const Communicator& group, const std::string& label,
                                           const std::function<std::string()>& f, const Raise& raise) {
  const auto own = outcome_of(f);
  auto all = exchanged(own, [&] { return group.internal(label).all_gather_bytes(own.message); });
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = result_in(all[rank], rank, group, raise);
  return all;
}

std::string broadcast_result(const Communicator& group, const std::string& label, const std::function<std::string()>& f,
                             const Raise& raise) {
  const auto own = group.rank() == 0 ? outcome_of(f) : Outcome{};
  return result_in(exchanged(own, [&] { return group.internal(label).broadcast_bytes(own.message); }), 0, group, raise);
}

std::optional<Difference> first_difference(const std::vector<std::string>& texts) {
  const auto other =
      std::find_if(texts.begin(), texts.end(), [&](const std::string& one) { return one != texts.front(); });
  if (other == texts.end()) return std::nullopt;
  return Difference{texts.front(), *other, static_cast<std::size_t>(other - texts.begin())};
}

std::size_t CoalescedAllReduce::add(double mine, ReduceOp op) {
  mine_.push_back(mine);
  ops_.push_back(op);
  return mine_.size() - 1;
}

void CoalescedAllReduce::run() {
  results_ = mine_;
  if (group_.size() == 1) return;
  const auto all = group_.all_gather(at::tensor(mine_, at::kDouble));
  const auto count = mine_.size();
  const auto* values = all.const_data_ptr<double>();
  for (std::size_t i = 0; i < count; ++i) {
    double result = values[i];
    for (int rank = 1; rank < group_.size(); ++rank) {
      const double other = values[static_cast<std::size_t>(rank) * count + i];
      if (ops_[i] == ReduceOp::max) result = std::max(result, other);
      else if (ops_[i] == ReduceOp::min) result = std::min(result, other);
      else result += other;
    }
    results_[i] = result;
  }
}

bool any_rank(const Communicator& group, std::string label, bool mine) {
  CoalescedAllReduce scalars(group, std::move(label));
  scalars.add(mine, ReduceOp::max);
  scalars.run();
  return scalars.result(0) > 0;
}

void require_same_lines(const Communicator& group, const std::vector<std::string>& lines,
                        const DisagreementText& text) {
  std::string joined;
  for (const auto& line : lines) joined += line + '\n';
  const auto found = first_difference(group.internal("comparing what the ranks have built").all_gather_bytes(joined));
  if (!found) return;
  const auto first = split_text(found->first, '\n'), second = split_text(found->other, '\n');
  std::size_t at = 0;
  while (at < first.size() && at < second.size() && first[at] == second[at]) ++at;
  throw ConfigError("MU150", formatted("{}: rank 0 has {}, rank {} has {}; {}", text.what, line_or_none(first, at),
                                       found->rank, line_or_none(second, at), text.remedy));
}

}  // namespace muster::comm
