#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>

namespace muster::hook {

/// The dispatch key under which a thread's random operators are given a generator. LibTorch keeps it for tests; it lies above
/// autograd, and operators that draw nothing fall through it at no cost.
inline constexpr c10::DispatchKey kRandomKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Set to anything but "" or "0", this environment variable keeps the random key out of the process.
inline constexpr const char* kNoRandomKeyVariable = "MUSTER_NO_RANDOM_KEY";

/// Whether the environment allows the random key.
bool random_key_allowed();

/// While it lives, operators of this thread that would draw from the process's default CPU generator draw from a generator of
/// this scope instead, so they neither move nor race with it. A generator given to an operator by name is left alone, and so are
/// operators on other devices and threads. Scopes may be nested. Without the random key in the process it does nothing.
/// Thread safety: made, used and destroyed by one thread; several threads may have scopes at the same time.
class RandomScope {
 public:
  RandomScope();
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  /// Operators draw the numbers of this seed from here on. Costs nothing until one draws.
  void seed(uint64_t seed) noexcept;
  /// The innermost scope of this thread, or nullptr.
  static RandomScope* current() noexcept;
  /// What operators draw from now.
  const at::Generator& generator();

 private:
  at::Generator generator_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
  RandomScope* outer_;
  uint64_t seed_ = 0;
  bool stale_ = true;
};

/// Registers the random key's kernels, once per process, on the first call; true if they are there.
/// Thread-safe.
bool install_random_key();

}  // namespace muster::hook
