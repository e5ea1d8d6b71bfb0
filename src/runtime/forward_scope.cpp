#include "muster/parallel/detail/managed_model.h"
#include "muster/runtime/detail/model.h"

namespace muster::runtime {

optim::FlatSource* flat_source_of(const PreparedModel& model) { return model.managed.get(); }

ForwardScope::ForwardScope(PreparedModel& model)
    : model_(model), span_(*model.trace, "forward"), cast_(model.policy.precision(), model.device) {
  model_.managed->enter_forward();
}

ForwardScope::~ForwardScope() { model_.managed->leave_forward(); }

}  // namespace muster::runtime
