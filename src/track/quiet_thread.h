#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace muster::track {

/// A thread that blocks all signals: they are for the threads of the program.
template <class Task>
std::thread quiet_thread(Task&& task) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<Task>(task));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace muster::track
