#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace muster::hook {

/// The dispatch key through which a thread's random operators get a generator. LibTorch reserves it for tests. It comes
/// before autograd, and operators that draw nothing fall through it at no cost.
inline constexpr c10::DispatchKey kRandomKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// If set to anything but "" or "0", this environment variable keeps the random key out of the process.
inline constexpr const char* kNoRandomKeyVariable = "MUSTER_NO_RANDOM_KEY";

/// Whether the environment allows the random key.
bool random_key_allowed();

/// While it exists, operators of this thread that would draw from the process's default CPU generator draw from a
/// generator of this scope instead, so they neither advance nor race with the default one. A generator passed
/// explicitly to an operator is left alone, and so are operators on other devices and threads. Scopes may be nested.
/// Does nothing if the random key is not installed in the process.
/// Thread safety: made, used and destroyed by one thread; several threads may have scopes at the same time.
class RandomScope {
 public:
  RandomScope();
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  /// Operators draw from this seed from here on. Costs nothing until one draws.
  void seed(uint64_t seed) noexcept;
  /// The innermost scope of this thread, or nullptr.
  static RandomScope* current() noexcept;
  /// The generator that operators draw from now.
  const at::Generator& generator();

 private:
  at::Generator generator_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
  RandomScope* outer_;
  uint64_t seed_ = 0;
  bool stale_ = true;
};

/// Registers the random key's kernels, once per process, on the first call; true if they are registered.
/// Thread-safe.
bool install_random_key();

}  // namespace muster::hook
