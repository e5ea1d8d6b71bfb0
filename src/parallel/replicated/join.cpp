#include "parallel/join.h"

#include <iterator>
#include <string>
#include <tuple>

#include <ATen/ops/tensor.h>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/optim/detail/norm.h"

namespace muster::parallel {
namespace {

/// While this object exists, the models announce what they communicate.
class OpenSession {
 public:
  OpenSession(const std::vector<Joinable*>& models, JoinSession& session) : models_(models) {
    for (size_t i = 0; i < models_.size(); ++i) models_[i]->set_session(&session, static_cast<int64_t>(i));
  }
  OpenSession(const OpenSession&) = delete;
  ~OpenSession() {
    for (auto* model : models_) model->set_session(nullptr, -1);
  }

 private:
  const std::vector<Joinable*>& models_;
};

std::vector<Joinable*> joinable(const std::vector<std::shared_ptr<ManagedModel>>& models) {
  std::vector<Joinable*> all;
  for (const auto& model : models) {
    all.push_back(model->joinable());
    if (!all.back())
      throw UsageError(
          "MU117", "join_uneven_inputs was given a model that cannot be joined (" + model->describe() +
                       "): only replicated models can; train with strategy ddp, or let even_batches make ranks equal");
    if (const auto obstacle = all.back()->obstacle(); !obstacle.empty())
      throw UsageError("MU117", "join_uneven_inputs was given a model that cannot be joined (" + model->describe() +
                                    "), since " + obstacle);
  }
  return all;
}

void run_own_part(const std::function<void()>& f, JoinSession& session) {
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

}  // namespace

void JoinSession::check(int rank, const int64_t* said) {
  const auto [event, model, models] = std::tie(said[0], said[1], said[2]);
  if (models != models_) {
    broken_ = true;
    throw UsageError("MU118", "join_uneven_inputs was given " + std::to_string(models_) + " models on rank " +
                                  std::to_string(group_.rank()) + " and " + std::to_string(models) + " on rank " +
                                  std::to_string(rank) + "; name the same models on every rank");
  }
  const bool speaks = event == static_cast<int64_t>(JoinEvent::gradients);
  const bool ends =
      event == static_cast<int64_t>(JoinEvent::finished) || event == static_cast<int64_t>(JoinEvent::failed);
  if (ends || (speaks && model >= 0 && model < models_)) return;
  broken_ = true;
  throw CommError("MU050", "inside join_uneven_inputs, rank " + std::to_string(rank) +
                               " said what no rank says (event " + std::to_string(event) + ", model " +
                               std::to_string(model) + "): do all ranks run the same build?");
}

JoinSession::Next JoinSession::report(JoinEvent event, int64_t model) {
  const auto all = group_.all_gather(at::tensor({static_cast<int64_t>(event), model, models_}, at::kLong));
  const auto* said = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < group_.size(); ++rank) check(rank, said + std::ptrdiff_t{3} * rank);
  Next next;
  int first = -1;
  for (int rank = 0; rank < group_.size(); ++rank, said += 3) {
    const auto of_rank = static_cast<JoinEvent>(said[0]);
    if (of_rank == JoinEvent::failed) next.failed = rank;
    if (of_rank == JoinEvent::finished || of_rank == JoinEvent::failed) continue;
    ++next.active;
    next.root = rank;
    if (first < 0) {
      first = rank;
      next.event = of_rank;
      next.model = said[1];
    } else if (next.event != of_rank || next.model != said[1]) {
      broken_ = true;
      throw UsageError(
          "MU118", "inside join_uneven_inputs, ranks " + std::to_string(first) + " and " + std::to_string(rank) +
                       " communicate for different models or at different points of their step; let every rank run the "
                       "same steps, as long as it has batches");
    }
  }
  if (next.failed >= 0 && event != JoinEvent::failed) {
    broken_ = true;
    comm::report_lost_rank(group_, next.failed, "MU119");
    throw UsageError("MU119", "the loop of rank " + std::to_string(next.failed) +
                                  " inside join_uneven_inputs threw; see that rank's error");
  }
  if (next.active > 0) last_rank_ = next.root;
  uneven_ = uneven_ || (next.active > 0 && next.active < group_.size());
  return next;
}

void Participants::set_session(JoinSession* session, int64_t model) noexcept {
  session_ = session;
  model_ = model;
  if (!session) include_all();
}

void Participants::report() {
  if (!session_) return;
  const auto next = session_->report(JoinEvent::gradients, model_);
  set(next.root, session_->divisor(next.active));
}

void Participants::set(int root, double divisor) {
  scale_ = optim::wrapped_number(1.0 / divisor);
  root_ = root;
}

void join_uneven_inputs(const comm::Communicator& group, const std::vector<std::shared_ptr<ManagedModel>>& models,
                        const std::function<void()>& f, const JoinOptions& options,
                        const std::function<void(int last_rank)>& then) {
  if (group.size() == 1) return f();
  const auto all = joinable(models);
  JoinSession session(group, std::ssize(all), options);
  {
    const OpenSession open(all, session);
    run_own_part(f, session);
  }
  for (;;) {
    const auto next = session.report(JoinEvent::finished, -1);
    if (next.active == 0) break;
    all[static_cast<size_t>(next.model)]->shadow(next.event, next.root, session.divisor(next.active));
  }
  if (!session.uneven()) return;
  for (auto* model : all) model->sync_final_model(session.last_rank());
  if (then) then(session.last_rank());
}

}  // namespace muster::parallel
