#include "memory_owners.h"
#include "muster/parallel/managed_model.h"
#include "muster/runtime/outside_forward.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

optim::FlatParameters* flat_parameters_of(const PreparedModel& model) { return model.managed.get(); }

ForwardScope::ForwardScope(PreparedModel& model) : model_(model) { open(); }
ForwardScope::~ForwardScope() {
  if (span_) close();
}

void ForwardScope::open() const {
  span_.emplace(*model_.trace, "forward");
  try {
    cast_.emplace(model_.policy.precision(), model_.device);
    model_.managed->enter_forward();
  } catch (...) {
    cast_.reset();
    span_.reset();
    throw;
  }
  model_.scopes.push_back(this);
}

void ForwardScope::close() const noexcept {
  model_.scopes.pop_back();
  model_.managed->leave_forward();
  cast_.reset();
  span_.reset();
}

ForwardPause::ForwardPause(PreparedModel& model) : scopes_(model.scopes) {
  while (!model.scopes.empty()) model.scopes.back()->close();
}

void ForwardPause::resume() const {
  for (const auto* scope : scopes_) scope->open();
}

void outside_forward_scope(PreparedModel& model, c10::function_ref<void()> f) {
  const ForwardPause pause(model);
  f();
  pause.resume();
}

void in_forward_scope(PreparedModel& model, c10::function_ref<void()> forward) {
  const auto add_error_context = [&](c10::Error& error) {
    if (model.add_error_context) model.add_error_context(error);
  };
  with_error_context(add_error_context, [&] {
    const ForwardScope scope(model);
    with_error_context(add_error_context, forward);  // while gathered parameters are still in memory
  });
}

const std::shared_ptr<parallel::ManagedModel>& managed_by(const PreparedModel& model) { return model.managed; }
GradNorm grad_norm_of(const PreparedModel& model) { return model.grad_norm(); }
void convert_input(const PreparedModel& model, at::Tensor& tensor) { model.policy.convert_input(tensor); }
void convert_output(const PreparedModel& model, at::Tensor& tensor) { model.policy.convert_output(tensor); }

}  // namespace muster::runtime
