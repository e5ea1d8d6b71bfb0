#pragma once  // for other rooms

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace muster::hook {

/// The dispatch key of interceptors that take named operators, included while a thread has them switched on. LibTorch
/// reserves it for tests. Operators that no interceptor names fall through it at no cost: LibTorch leaves such a key
/// out when it looks for the kernel.
inline constexpr c10::DispatchKey kNamedOperatorsKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// The dispatch key of interceptors that take every operator. It is on tensors that carry it, and included on a thread
/// that has such an interceptor switched on. LibTorch reserves it for out-of-tree use. Like kNamedOperatorsKey it comes
/// before autograd and autocast, so an operator is seen once, before anything is saved or cast.
inline constexpr c10::DispatchKey kEveryOperatorKey = c10::DispatchKey::DeferredInit;

/// The one order in which interceptors see an operator, first to last. It has four sections of eight priorities; the
/// section says when an interceptor is called, and which operators it may take:
/// - 0 to 7: named operators, on threads that switched it on (kNamedOperatorsKey);
/// - 8 to 15: every operator, on threads that switched it on (kEveryOperatorKey);
/// - 16 to 23: every operator on a tensor that carries kEveryOperatorKey, unless the thread switched it off; while an
///   interceptor of 8 to 15 is on, it is called for every operator and looks at the tensors itself;
/// - 24 to 31: named operators under autocast on a CPU (AutocastCPU), unless the thread switched it off.
/// Add a new interceptor here with a free priority; it needs no key.
/// Why: docs/decisions/0078-one-order-of-interceptors.md.
enum class Priority : uint8_t {
  random_generator = 0,    ///< random_scope.h
  recorder = 8,            ///< graph/recording.h: after random_generator, whose generator it replays
  operator_override = 16,  ///< operator_override.h: before storage_access, since a replaced operator reads no storage
  storage_access = 17,     ///< watched_storage.h
  half_lstm = 24,          ///< half_lstm.h: LSTM of float16 under autocast on a CPU
};

/// A set of priorities.
struct Priorities {
  constexpr Priorities(Priority one) : bits(uint32_t{1} << static_cast<uint8_t>(one)) {}
  constexpr Priorities(Priority one, Priority other) : bits(Priorities(one).bits | Priorities(other).bits) {}
  uint32_t bits;
};

/// One operator on its way through the interceptors to LibTorch.
/// Thread safety: used by the thread that runs the operator, until its interceptor returns.
class Call {
 public:
  Call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack, uint32_t waiting)
      : op_(op), stack_(stack), below_(below), waiting_(waiting) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const c10::OperatorHandle& op() const noexcept { return op_; }
  const c10::FunctionSchema& schema() const;
  /// The keys of LibTorch's kernels that may run for these arguments on this thread.
  c10::DispatchKeySet keys() const noexcept { return below_; }
  torch::jit::Stack& stack() const noexcept { return stack_; }
  /// The arguments in the order of the schema, on top of the stack. They may be replaced.
  std::span<c10::IValue> arguments() const;
  /// Runs the interceptors that come later in the order, then LibTorch's kernel. Afterwards the results are on the
  /// stack in place of the arguments. An interceptor that puts results there itself does not call this.
  void proceed();

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  c10::DispatchKeySet below_;
  uint32_t waiting_;  // bits of the interceptors that come next
};

/// An environment variable that keeps a part of Muster out of the process when it is set to anything but "" or "0".
struct DisableVariable {
  const char* variable;
  bool allows() const;
};

/// A function that is called for operators before LibTorch's own kernels.
struct Interceptor {
  const char* name;  ///< its name in messages: "random generator"
  Priority priority;
  /// Selects the operators of LibTorch (aten::) that it takes; nullptr if the priority takes every operator.
  bool (*takes)(const c10::FunctionSchema& schema);
  /// Called for each of these operators. What it throws propagates out of the operator.
  void (*run)(Call& call);
  DisableVariable disabled_by;
};

/// Registers an interceptor with LibTorch's dispatcher, once per process. It is never unregistered, since another
/// thread may be inside. Returns "", or why the process does not have it: its variable forbids it, or the key belongs
/// to another library. Installing it again does nothing.
/// Throws: UsageError (MU315) if another interceptor has the priority, or if `takes` does not suit the priority.
/// Thread-safe.
std::string install(const Interceptor& interceptor);

/// Switches interceptors on or off on this thread while it exists; the previous state comes back at the end, also after
/// an exception. Scopes may be nested, and end in reverse order. Does nothing for an interceptor that is not installed.
/// Other threads are not affected; autograd's threads begin with the state that a new thread has.
class InterceptorGuard {
 public:
  InterceptorGuard(Priorities which, bool on) noexcept;
  ~InterceptorGuard();
  InterceptorGuard(const InterceptorGuard&) = delete;
  InterceptorGuard& operator=(const InterceptorGuard&) = delete;

 private:
  uint32_t before_;
  uint32_t keys_before_, keys_changed_;
};

}  // namespace muster::hook
