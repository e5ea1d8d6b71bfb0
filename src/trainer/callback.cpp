#include "muster/trainer/callback.h"

#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>

#include "base/log.h"
#include "core.h"
#include "muster/base/error.h"

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

bool Core::is_barebones() {
  if (options.barebones && !std::exchange(said_barebones_, true) && runtime.is_main())
    log::warning("barebones is on: what is logged is left out");
  return options.barebones;
}

LogContext Core::context_of_hook() const {
  auto context = context_;
  context.hook = hooks.current();
  context.evaluates = evaluating_;
  context.filler = filler_;
  return context;
}

void Core::log(std::string_view name, const at::Tensor& value, const LogOptions& how) {
  if (!is_barebones()) book().log(context_of_hook(), name, value, how, runtime.group());
}

void Core::log(std::string_view name, double value, const LogOptions& how) {
  if (!is_barebones()) book().log(context_of_hook(), name, value, how, runtime.group());
}

void Core::log(std::string_view name, Metric& metric, const LogOptions& how) {
  if (!is_barebones()) book().metrics().add(context_of_hook(), name, metric, how);
}

}  // namespace trainer
}  // namespace muster
