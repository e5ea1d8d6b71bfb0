#pragma once

#include <string>

#include "muster/base/error.h"

namespace muster::testing {

/// The message of the muster::Error that `call` throws, which begins with its id; "no error" if it returns.
/// Throws: any other exception of `call`.
template <class Call>
std::string thrown(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The id of the muster::Error that `call` throws, such as "MU054"; "no error" if it returns.
template <class Call>
std::string thrown_id(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.id();
  }
  return "no error";
}

}  // namespace muster::testing
