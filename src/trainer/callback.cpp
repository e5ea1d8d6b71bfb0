#include "muster/trainer/callback.h"

#include <c10/util/Type.h>

#include "muster/base/error.h"
#include "muster/trainer/callbacks.h"

namespace muster {

std::string Callback::state_key() const { return c10::demangle(typeid(*this).name()); }

int64_t BatchView::size() const {
  int64_t size = -1;
  visit([&](at::Tensor& tensor) {
    if (size < 0 && tensor.defined() && tensor.dim() > 0) size = tensor.size(0);
  });
  return size < 0 ? 1 : size;
}

namespace trainer {

void refuse_batch_type(const std::type_info& wanted, const std::type_info& given) {
  throw UsageError("MU447", "a callback asked for a batch of type " + c10::demangle(wanted.name()) +
                                ", and the loader gives " + c10::demangle(given.name()) + "; ask for that type");
}

}  // namespace trainer

// Not in the header, so that the compiler emits the functions of the class here alone.
void LambdaCallback::setup(Trainer& t, TrainerModule& m, Stage stage) { call(hooks_.setup, t, m, stage); }

}  // namespace muster
