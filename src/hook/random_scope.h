#pragma once  // for other rooms

#include <ATen/core/Generator.h>

#include "hook/interceptor.h"

namespace c10 {
struct Argument;
}

namespace muster::hook {

/// Keeps the interceptor of random operators out of the process.
inline constexpr DisableVariable kRandomKeySwitch{"MUSTER_NO_RANDOM_KEY"};

/// While this object exists, operators of this thread that would draw from the process's default CPU generator draw
/// from a generator of this scope instead, so they neither advance nor race with the default one. A generator passed
/// explicitly to an operator is left alone, and so are operators on other devices and threads. Scopes may be nested.
/// Does nothing if install_random_key() returns false.
/// Thread safety: made, used and destroyed by one thread; several threads may have scopes at the same time.
/// Why: docs/decisions/0031-random-operators-in-datasets.md.
class RandomScope {
 public:
  RandomScope();
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  /// Seeds the generator for the operators that follow. Costs nothing until one of them draws.
  void seed(uint64_t seed) noexcept;
  /// The innermost scope of this thread, or nullptr.
  static RandomScope* current() noexcept;
  /// The generator that operators draw from now.
  const at::Generator& generator();

 private:
  at::Generator generator_;
  RandomScope* outer_;
  InterceptorGuard on_;
  uint64_t seed_ = 0;
  bool stale_ = true;
};

/// Whether an operator takes a generator by this argument.
bool is_generator(const c10::Argument& argument);

/// Installs the interceptor random_generator, once per process, on the first call; true if the process has it.
/// Thread-safe.
bool install_random_key();

}  // namespace muster::hook
