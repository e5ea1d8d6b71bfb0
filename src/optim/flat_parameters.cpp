#include "muster/optim/detail/flat_parameters.h"

#include <exception>

namespace muster::optim {

void write_parameters(FlatParameters* source, const std::vector<at::Tensor>& parameters,
                      const std::function<void()>& write) {
  if (!source) return write();
  source->begin_update();
  std::exception_ptr error;
  try {
    write();
  } catch (...) {
    error = std::current_exception();  // the other ranks wait for this one's parameters all the same
  }
  source->end_update(parameters);
  if (error) std::rethrow_exception(error);
}

}  // namespace muster::optim
