#include "muster/optim/flat_parameters.h"

#include <exception>

namespace muster::optim {

void write_parameters(FlatParameters* owner, const std::vector<at::Tensor>& parameters,
                      const std::function<void()>& write) {
  if (!owner) return write();
  owner->begin_update();
  std::exception_ptr error;
  try {
    write();
  } catch (const std::exception& failure) {
    if (owner->abandon_update(failure.what())) throw;
    error = std::current_exception();  // the other ranks wait for this rank's parameters even after an error
  } catch (...) {
    if (owner->abandon_update("an exception of no known kind")) throw;
    error = std::current_exception();
  }
  owner->end_update(parameters);
  if (error) std::rethrow_exception(error);
}

}  // namespace muster::optim
