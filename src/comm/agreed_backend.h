#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace muster::comm {

/// How ranks that make a backend learn whether all of them have.
struct BackendAgreement {
  c10::intrusive_ptr<c10d::Store> store;  ///< of this agreement alone
  int rank = 0, size = 1;                 ///< among those that make it
  std::chrono::milliseconds timeout{};    ///< of the ranks that have made theirs, for the others
  std::string group{};                    ///< "group world/0", whose rank this is
  std::string what{};                     ///< "the backend nccl for cuda"
};

/// Returns what `make` returns, once it has returned on all ranks. The first rank on which it throws, or which has
/// waited for the others longer than the time-out, writes that into the store, and all ranks throw it. So does one
/// whose `make` waits for that rank, when it gives up.
/// Throws: CommError with the id of what was thrown, or MU575 if that has none; CommError (MU058) if the store is lost.
/// Collective.
c10::intrusive_ptr<c10d::Backend> make_on_all_ranks(const BackendAgreement& agreement,
                                                    const std::function<c10::intrusive_ptr<c10d::Backend>()>& make);

}  // namespace muster::comm
