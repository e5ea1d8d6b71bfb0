#include "muster/parallel/detail/managed_model.h"
#include "muster/runtime/detail/prepared_model.h"

namespace muster::runtime {

optim::FlatParameters* flat_parameters_of(const PreparedModel& model) { return model.managed.get(); }

ForwardScope::ForwardScope(PreparedModel& model)
    : model_(model), span_(*model.trace, "forward"), cast_(model.policy.precision(), model.device) {
  model_.managed->enter_forward();
}

ForwardScope::~ForwardScope() { model_.managed->leave_forward(); }

void in_forward_scope(PreparedModel& model, c10::function_ref<void()> forward) {
  const ForwardScope scope(model);
  forward();
}

const std::shared_ptr<parallel::ManagedModel>& managed_by(const PreparedModel& model) { return model.managed; }
double grad_norm_of(const PreparedModel& model) { return model.grad_norm(); }
void convert_input(const PreparedModel& model, at::Tensor& tensor) { model.policy.convert_input(tensor); }
void convert_output(const PreparedModel& model, at::Tensor& tensor) { model.policy.convert_output(tensor); }

}  // namespace muster::runtime
