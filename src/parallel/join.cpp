#include "muster/parallel/join.h"

#include "muster/base/error.h"
#include "parallel/join_session.h"

#include <ATen/ops/tensor.h>

#include <string>

namespace muster::parallel {
namespace {

/// The models announce what they communicate as long as it lives.
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
      throw UsageError("MU117", "join_uneven_inputs was given a model that cannot be joined (" + model->describe() +
                                    "): only replicated models can; train with strategy ddp, or let even_batches make ranks equal");
  }
  return all;
}

void run_own_part(const std::function<void()>& f, JoinSession& session) {
  try {
    f();
  } catch (const CommError&) {
    throw;   // the group is unusable, so nobody can be told
  } catch (...) {
    if (session.broken()) throw;
    try {
      session.tell(JoinEvent::failed, -1);
    } catch (const Error&) {   // what f threw says more
    }
    throw;
  }
}

}  // namespace

JoinSession::Next JoinSession::tell(JoinEvent event, int64_t model) {
  const auto all = group_.all_gather(at::tensor({static_cast<int64_t>(event), model}, at::kLong));
  const auto* said = all.const_data_ptr<int64_t>();
  Next next;
  int first = -1;
  for (int rank = 0; rank < group_.size(); ++rank, said += 2) {
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
      throw UsageError("MU118", "inside join_uneven_inputs, ranks " + std::to_string(first) + " and " + std::to_string(rank) +
                                    " communicate for different models or at different points of their step; let every rank run the "
                                    "same steps, as long as it has batches");
    }
  }
  if (next.failed >= 0 && event != JoinEvent::failed) {
    broken_ = true;
    throw UsageError("MU119", "the loop of rank " + std::to_string(next.failed) + " inside join_uneven_inputs threw; see that rank's error");
  }
  if (next.active > 0) last_rank_ = next.root;
  uneven_ = uneven_ || (next.active > 0 && next.active < group_.size());
  return next;
}

void join_uneven_inputs(const dist::Communicator& group, const std::vector<std::shared_ptr<ManagedModel>>& models,
                        const std::function<void()>& f, const JoinOptions& options, const std::function<void(int last_rank)>& then) {
  if (group.size() == 1) return f();
  const auto all = joinable(models);
  JoinSession session(group, options);
  {
    const OpenSession open(all, session);
    run_own_part(f, session);
  }
  for (;;) {
    const auto next = session.tell(JoinEvent::finished, -1);
    if (next.active == 0) break;
    all[static_cast<size_t>(next.model)]->shadow(next.event, next.root, session.divisor(next.active));
  }
  if (!session.uneven()) return;
  for (auto* model : all) model->share_values_of(session.last_rank());
  if (then) then(session.last_rank());
}

}  // namespace muster::parallel
