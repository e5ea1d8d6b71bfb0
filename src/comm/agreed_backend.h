#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace muster::comm {

/// How ranks that create a backend together learn whether all of them succeeded.
struct BackendAgreement {
  c10::intrusive_ptr<c10d::Store> store;  ///< a store that only this agreement uses
  int rank = 0, size = 1;                 ///< this rank and the number of ranks that create the backend
  std::chrono::milliseconds timeout{};    ///< how long ranks that have created theirs wait for the others
  std::string group{};                    ///< the group of `rank`, such as "group world/0"
  std::string what{};                     ///< what is created, such as "the backend nccl for cuda"
};

/// Returns what `make` returns, once it has returned on all ranks. If `make` throws on a rank, or if a rank has waited
/// for the others longer than the timeout, the first such rank writes its error into the store, and all ranks throw it.
/// A rank whose `make` waits for that rank throws it when `make` gives up.
/// Throws: CommError with the id of what was thrown, or MU575 if that has none; CommError (MU058) if the store is lost.
/// Collective.
/// Collective.
c10::intrusive_ptr<c10d::Backend> make_on_all_ranks(const BackendAgreement& agreement,
                                                    const std::function<c10::intrusive_ptr<c10d::Backend>()>& make);

}  // namespace muster::comm
