#include "muster/trainer/callback.h"

#include <typeinfo>

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
namespace {

template <class F, class... A>
void call(const F& hook, A&&... arguments) {
  if (hook) hook(std::forward<A>(arguments)...);
}

}  // namespace

void LambdaCallback::setup(Trainer& t, TrainerModule& m, Stage stage) { call(hooks_.setup, t, m, stage); }
void LambdaCallback::teardown(Trainer& t, TrainerModule& m, Stage stage) { call(hooks_.teardown, t, m, stage); }
void LambdaCallback::on_fit_start(Trainer& t, TrainerModule& m) { call(hooks_.on_fit_start, t, m); }
void LambdaCallback::on_fit_end(Trainer& t, TrainerModule& m) { call(hooks_.on_fit_end, t, m); }
void LambdaCallback::on_sanity_check_start(Trainer& t, TrainerModule& m) { call(hooks_.on_sanity_check_start, t, m); }
void LambdaCallback::on_sanity_check_end(Trainer& t, TrainerModule& m) { call(hooks_.on_sanity_check_end, t, m); }
void LambdaCallback::on_train_start(Trainer& t, TrainerModule& m) { call(hooks_.on_train_start, t, m); }
void LambdaCallback::on_train_end(Trainer& t, TrainerModule& m) { call(hooks_.on_train_end, t, m); }
void LambdaCallback::on_train_epoch_start(Trainer& t, TrainerModule& m) { call(hooks_.on_train_epoch_start, t, m); }
void LambdaCallback::on_train_epoch_end(Trainer& t, TrainerModule& m) { call(hooks_.on_train_epoch_end, t, m); }
void LambdaCallback::on_train_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) {
  call(hooks_.on_train_batch_start, t, m, batch, place);
}
void LambdaCallback::on_train_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                                        BatchPlace place) {
  call(hooks_.on_train_batch_end, t, m, output, batch, place);
}
void LambdaCallback::on_validation_start(Trainer& t, TrainerModule& m) { call(hooks_.on_validation_start, t, m); }
void LambdaCallback::on_validation_end(Trainer& t, TrainerModule& m) { call(hooks_.on_validation_end, t, m); }
void LambdaCallback::on_validation_epoch_start(Trainer& t, TrainerModule& m) {
  call(hooks_.on_validation_epoch_start, t, m);
}
void LambdaCallback::on_validation_epoch_end(Trainer& t, TrainerModule& m) {
  call(hooks_.on_validation_epoch_end, t, m);
}
void LambdaCallback::on_validation_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) {
  call(hooks_.on_validation_batch_start, t, m, batch, place);
}
void LambdaCallback::on_validation_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output,
                                             const BatchView& batch, BatchPlace place) {
  call(hooks_.on_validation_batch_end, t, m, output, batch, place);
}
void LambdaCallback::on_test_start(Trainer& t, TrainerModule& m) { call(hooks_.on_test_start, t, m); }
void LambdaCallback::on_test_end(Trainer& t, TrainerModule& m) { call(hooks_.on_test_end, t, m); }
void LambdaCallback::on_test_epoch_start(Trainer& t, TrainerModule& m) { call(hooks_.on_test_epoch_start, t, m); }
void LambdaCallback::on_test_epoch_end(Trainer& t, TrainerModule& m) { call(hooks_.on_test_epoch_end, t, m); }
void LambdaCallback::on_test_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) {
  call(hooks_.on_test_batch_start, t, m, batch, place);
}
void LambdaCallback::on_test_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                                       BatchPlace place) {
  call(hooks_.on_test_batch_end, t, m, output, batch, place);
}
void LambdaCallback::on_predict_start(Trainer& t, TrainerModule& m) { call(hooks_.on_predict_start, t, m); }
void LambdaCallback::on_predict_end(Trainer& t, TrainerModule& m) { call(hooks_.on_predict_end, t, m); }
void LambdaCallback::on_predict_epoch_start(Trainer& t, TrainerModule& m) { call(hooks_.on_predict_epoch_start, t, m); }
void LambdaCallback::on_predict_epoch_end(Trainer& t, TrainerModule& m) { call(hooks_.on_predict_epoch_end, t, m); }
void LambdaCallback::on_predict_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) {
  call(hooks_.on_predict_batch_start, t, m, batch, place);
}
void LambdaCallback::on_predict_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output,
                                          const BatchView& batch, BatchPlace place) {
  call(hooks_.on_predict_batch_end, t, m, output, batch, place);
}
void LambdaCallback::on_before_zero_grad(Trainer& t, TrainerModule& m, ModuleOptimizer& optimizer) {
  call(hooks_.on_before_zero_grad, t, m, optimizer);
}
void LambdaCallback::on_before_backward(Trainer& t, TrainerModule& m, const at::Tensor& loss) {
  call(hooks_.on_before_backward, t, m, loss);
}
void LambdaCallback::on_after_backward(Trainer& t, TrainerModule& m) { call(hooks_.on_after_backward, t, m); }
void LambdaCallback::on_before_optimizer_step(Trainer& t, TrainerModule& m, ModuleOptimizer& optimizer) {
  call(hooks_.on_before_optimizer_step, t, m, optimizer);
}
void LambdaCallback::on_exception(Trainer& t, TrainerModule& m, const std::exception_ptr& error) {
  call(hooks_.on_exception, t, m, error);
}
void LambdaCallback::on_save_checkpoint(Trainer& t, TrainerModule& m, State& checkpoint) {
  call(hooks_.on_save_checkpoint, t, m, checkpoint);
}
void LambdaCallback::on_load_checkpoint(Trainer& t, TrainerModule& m, State& checkpoint) {
  call(hooks_.on_load_checkpoint, t, m, checkpoint);
}

}  // namespace muster
