#pragma once

#include <exception>
#include <string>

#include "base/shown.h"
#include "comm/error_text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Runs `make`, which connects a group by `what`. If it cannot reach a rank, throws CommError (MU058) with a text that
/// ends with `hint`.
template <class F>
auto connect_or_throw(const std::string& what, const std::string& name, int rank, F make,
                      const char* hint = "Look for the first failure in the output of the other ranks.") {
  std::string reason;
  try {
    return make();
  } catch (const TransportFailure& failure) {
    const bool late = failure.kind == TransportFailure::Kind::timeout;
    reason = late ? formatted("rank {} did not answer in time", failure.peer) : failure.detail;
    if (failure.kind == TransportFailure::Kind::unusable) {
      const auto [id, text] = split_message(reason, "MU058");
      throw CommError(id, formatted("rank {} cannot connect group {} by {}: {}", rank, name, what, text));
    }
  } catch (const Error&) {
    throw;  // a peer or a value was refused
  } catch (const std::exception& failure) {
    reason = failure.what();
  } catch (...) {
    reason = kNoStdException;
  }
  throw CommError("MU058", formatted("rank {} could not connect group {} by {}: {}. {}", rank, name, what,
                                     short_error_text(reason), hint));
}

}  // namespace muster::comm
