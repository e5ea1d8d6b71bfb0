#include "parallel/join.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ScopeExit.h>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/optim/detail/norm.h"
#include "muster/tree/detail/pack.h"

namespace muster::parallel {
namespace {

std::vector<Joinable*> joinable(const std::vector<std::shared_ptr<ManagedModel>>& models) {
  std::vector<Joinable*> all;
  for (const auto& model : models) {
    all.push_back(model->joinable());
    const auto obstacle = all.back() ? all.back()->obstacle()
                                     : "its strategy does not say how other ranks take part in its communication: "
                                       "train with strategy ddp or fsdp, or let even_batches make ranks equal";
    if (!obstacle.empty())
      throw UsageError("MU117", "join_uneven_inputs was given a model that cannot be joined (" + model->describe() +
                                    "), since " + obstacle);
  }
  return all;
}

/// Runs what a rank does in a joined loop; if it throws, the other ranks are told.
void run_or_report(const std::function<void()>& f, JoinSession& session) {
  try {
    f();
  } catch (const CommError&) {
    throw;  // the group is unusable, so no rank can be informed
  } catch (...) {
    if (session.broken()) throw;
    try {
      session.report(JoinEvent::failed, -1);
    } catch (const Error&) {  // the error that f threw says more
    }
    throw;
  }
}

bool is_active(int64_t event) {
  return event != static_cast<int64_t>(JoinEvent::finished) && event != static_cast<int64_t>(JoinEvent::failed);
}

}  // namespace

JoinSession::JoinSession(const comm::Communicator& group, const std::vector<Joinable*>& models,
                         const JoinOptions& options)
    : group_(group.internal("join_uneven_inputs")), models_(std::ssize(models)), options_(options),
      makes_steps_(std::ranges::any_of(models, [](const Joinable* model) { return model->needs_steps(); })) {}

void JoinSession::check(int rank, const Said& said) {
  if (said.models != models_) {
    broken_ = true;
    throw UsageError("MU118", "join_uneven_inputs was given " + std::to_string(models_) + " models on rank " +
                                  std::to_string(group_.rank()) + " and " + std::to_string(said.models) + " on rank " +
                                  std::to_string(rank) + "; name the same models on every rank");
  }
  const bool of_model = is_active(said.event) && said.event != static_cast<int64_t>(JoinEvent::program);
  const bool known = said.event >= 0 && said.event <= static_cast<int64_t>(JoinEvent::program) && said.bytes >= 0;
  if (known && (!of_model || (said.model >= 0 && said.model < models_))) return;
  broken_ = true;
  throw CommError("MU050", "inside join_uneven_inputs, rank " + std::to_string(rank) +
                               " said what no rank says (event " + std::to_string(said.event) + ", model " +
                               std::to_string(said.model) + "): do all ranks run the same build?");
}

void JoinSession::require_same(int first, const Said& a, int second, const Said& b) {
  if (a.event == b.event && a.model == b.model && a.detail == b.detail && (a.bytes > 0) == (b.bytes > 0)) return;
  broken_ = true;
  throw UsageError("MU118",
                   "inside join_uneven_inputs, ranks " + std::to_string(first) + " and " + std::to_string(second) +
                       " communicate for different models or at different points of their step, or clip, step or "
                       "clear gradients differently; let every rank run the same steps, as long as it has batches");
}

JoinStep JoinSession::report(JoinEvent event, int64_t model, int64_t detail, const at::Tensor& more) {
  const int64_t bytes = more.defined() ? more.numel() : 0;
  const auto all =
      group_.all_gather(at::tensor({static_cast<int64_t>(event), model, detail, models_, bytes}, at::kLong));
  std::vector<Said> said;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto* numbers = all.const_data_ptr<int64_t>() + kNumbers * rank;
    said.push_back({numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]});
    check(rank, said.back());
  }
  JoinStep next;
  int first = -1, failed = -1;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (said[rank].event == static_cast<int64_t>(JoinEvent::failed)) failed = rank;
    if (!is_active(said[rank].event)) continue;
    ++next.active;
    next.root = rank;
    if (first < 0) first = rank;
    else require_same(first, said[first], rank, said[rank]);
  }
  if (failed >= 0 && event != JoinEvent::failed) {
    broken_ = true;
    comm::report_lost_rank(group_, failed, "MU119");
    throw UsageError("MU119", "the loop of rank " + std::to_string(failed) +
                                  " inside join_uneven_inputs threw; see that rank's error");
  }
  if (first < 0 || failed >= 0) return next;  // this rank has failed, and the others throw: they send nothing more
  last_rank_ = next.root;
  uneven_ = uneven_ || next.active < group_.size();
  next.event = static_cast<JoinEvent>(said[first].event);
  next.model = said[first].model;
  next.detail = said[first].detail;
  next.group = &group_;
  next.divisor = options_.divide_by_initial_world_size ? group_.size() : next.active;
  if (next.active == group_.size() || said[next.root].bytes == 0) return next;
  const auto sent = group_.rank() == next.root ? more : at::empty({said[next.root].bytes}, at::kByte);
  group_.broadcast(sent, next.root);
  if (!is_active(static_cast<int64_t>(event))) next.more = sent;
  return next;
}

void JoinSession::announce(const State& step, int64_t hash) { report(JoinEvent::program, -1, hash, tree::pack(step)); }

void Participants::set_session(JoinSession* session, int64_t model) noexcept {
  session_ = session;
  model_ = model;
  if (!session) include_all();
}

void Participants::report(const at::Tensor& more) {
  if (session_) set(session_->report(JoinEvent::gradients, model_, /*detail=*/0, more));
}

void Participants::announce(JoinEvent event, int64_t detail) const {
  if (session_) session_->report(event, model_, detail);
}

void Participants::set(const JoinStep& step) {
  divisor_ = step.divisor;
  scale_ = optim::wrapped_number(1.0 / divisor_);
  root_ = step.root;
  group_ = step.group;
}

void Participants::include_all() { set({.divisor = static_cast<double>(ranks_)}); }

void join_uneven_inputs(const comm::Communicator& group, const std::vector<std::shared_ptr<ManagedModel>>& models,
                        const std::function<void()>& f, const JoinOptions& options, const JoinCallbacks& callbacks) {
  if (group.size() == 1) return f();
  const auto all = joinable(models);
  JoinSession session(group, all, options);
  const auto announce_to = [&](JoinSession* open) {
    for (size_t i = 0; i < all.size(); ++i) all[i]->set_session(open, static_cast<int64_t>(i));
    if (callbacks.open) callbacks.open(open);
  };
  const auto end = c10::make_scope_exit([&] {
    for (auto* model : all) model->end_session();
  });
  {
    const auto close = c10::make_scope_exit([&] { announce_to(nullptr); });
    announce_to(&session);
    run_or_report(f, session);
  }
  for (;;) {
    const auto step = session.report(JoinEvent::finished, -1);
    if (step.active == 0) break;
    run_or_report(
        [&] {
          if (step.event == JoinEvent::program) return callbacks.follow(tree::unpack<State>(step.more));
          auto& model = *all[static_cast<size_t>(step.model)];
          if (step.event == JoinEvent::gradients && model.needs_steps() && callbacks.before_gradients)
            callbacks.before_gradients();
          model.follow(step);
        },
        session);
  }
  if (!session.uneven()) return;
  for (auto* model : all) model->sync_final_model(group, session.last_rank());
  if (callbacks.then) callbacks.then(session.last_rank());
}

}  // namespace muster::parallel
