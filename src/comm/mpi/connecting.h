#pragma once

#include <string>

#include "comm/transport.h"
#include "comm/words.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {

/// Runs `make`; its failure to reach a rank becomes a CommError.
template <class F>
auto connecting_by_mpi(const std::string& name, int rank, F make) {
  try {
    return make();
  } catch (const TransportFailure& failure) {
    const bool late = failure.kind == TransportFailure::Kind::timeout;
    throw CommError("MU058", formatted("rank {} could not connect group {} by MPI: {}. Look for the first failure in "
                                       "the output of the other ranks.",
                                       rank, name,
                                       late ? formatted("rank {} did not answer in time", failure.peer)
                                            : short_error_text(failure.detail)));
  }
}

}  // namespace muster::comm
