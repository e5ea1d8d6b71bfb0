#include "comm/fork_check.h"

#include <pthread.h>

#include <atomic>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

std::atomic<int> forks_before_this_process = 0;

// Registered before main(), so that no group exists without the handler.
[[maybe_unused]] const int kRegistered = ::pthread_atfork(nullptr, nullptr, [] { ++forks_before_this_process; });

}  // namespace

int ForkCheck::forks() noexcept { return forks_before_this_process.load(std::memory_order_relaxed); }

void ForkCheck::refuse(const char* what, std::string_view name) {
  throw CommError("MU571", formatted("{}{} belongs to the process from which this one was forked. Use groups in that "
                                     "process only, or connect() again in this one",
                                     what, name));
}

}  // namespace muster::comm
