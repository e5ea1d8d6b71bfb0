#include "hook/interceptor.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "base/mutex.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::hook {
namespace {

// The sections of Priority, one byte of the set each.
constexpr uint32_t kNamedOnThread = 0x000000ff, kEveryOnThread = 0x0000ff00, kEveryOnTensor = 0x00ff0000,
                   kUnderAutocast = 0xff000000;
constexpr uint32_t kEvery = kEveryOnThread | kEveryOnTensor;
constexpr size_t kPositions = 32;

/// What the kernels read. One per process, like LibTorch's dispatcher.
struct Installed {
  std::array<void (*)(Call&), kPositions> run{};  // written before the bit in `priorities`, then never changed
  std::atomic<uint32_t> priorities{0};
};
constinit Installed installed;

constinit thread_local uint32_t switched_on = kEveryOnTensor | kUnderAutocast;

// The keys after `key`: a redispatch among them reaches LibTorch's kernel and never comes back to ours.
constexpr c10::DispatchKeySet below(c10::DispatchKey key) { return {c10::DispatchKeySet::FULL_AFTER, key}; }

/// The kernel of one operator on the key of a section whose interceptors name their operators.
struct NamedKernel final : c10::OperatorKernel {
  explicit NamedKernel(c10::DispatchKey key) : after(below(key)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    // LibTorch passes a thread's keys to its worker threads, but not our switches. There, no interceptor is left to
    // call.
    Call(op, keys & after, *stack, takers.load(std::memory_order_acquire) & switched_on).proceed();
  }
  const c10::DispatchKeySet after;
  std::atomic<uint32_t> takers{0};
};

/// The kernel of all operators on kEveryOperatorKey.
void intercept_every(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto waiting = installed.priorities.load(std::memory_order_acquire) & kEvery & switched_on;
  Call(op, keys & below(kEveryOperatorKey), *stack, waiting).proceed();
}

/// The kernels of a section whose interceptors name their operators.
class NamedKernels {
 public:
  NamedKernels(c10::DispatchKey key, bool falls_through) : key_(key) {
    // Without a fallback, an operator that has no kernel for a key is an error. AutocastCPU already has LibTorch's
    // fallback.
    if (falls_through) {
      others_ = std::make_unique<torch::Library>(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
      others_->fallback(torch::CppFunction::makeFallthrough());
    }
    named_ = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  }

  /// Goes through the schemas, so that it also finds operators of later versions of LibTorch.
  void add(const Interceptor& interceptor) {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (op && name.name.rfind("aten::", 0) == 0 && interceptor.takes(op->schema()))
        kernel_of(name).takers.fetch_or(Priorities(interceptor.priority).bits, std::memory_order_release);
    }
  }

 private:
  /// One kernel for all interceptors that name the operator: a key holds one kernel per operator.
  NamedKernel& kernel_of(const c10::OperatorName& name) {
    auto& kernel = kernels_[toString(name)];
    if (!kernel) {
      auto made = std::make_unique<NamedKernel>(key_);
      kernel = made.get();
      const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      named_->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(made)));
    }
    return *kernel;
  }

  c10::DispatchKey key_;
  std::unique_ptr<torch::Library> others_, named_;
  std::map<std::string, NamedKernel*> kernels_;  // owned by the dispatcher
};

/// The one place that registers kernels with LibTorch's dispatcher.
class Registry {
 public:
  /// Never destroyed, since threads may dispatch until the process has ended.
  static Registry& of_process() {
    [[gnu::used]] static Registry* const registry = new Registry;  // reachable, so that leak checkers do not report it
    return *registry;
  }

  void install(const Interceptor& interceptor) {
    const base::Lock lock(mutex_);
    const auto bit = Priorities(interceptor.priority).bits;
    check(interceptor, bit);
    if (installed.priorities.load(std::memory_order_relaxed) & bit) return;
    const auto index = static_cast<size_t>(interceptor.priority);
    installed.run[index] = interceptor.run;
    if (bit & kNamedOnThread) {
      if (!on_thread_) on_thread_ = std::make_unique<NamedKernels>(kNamedOperatorsKey, /*falls_through=*/true);
      on_thread_->add(interceptor);
    } else if (bit & kUnderAutocast) {
      if (!autocast_) autocast_ = std::make_unique<NamedKernels>(c10::DispatchKey::AutocastCPU, false);
      autocast_->add(interceptor);
    } else if (!every_) {
      auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kEveryOperatorKey, __FILE__, __LINE__);
      // Boxed and for all namespaces, so that operators of users and of later versions are seen, too.
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept_every>());
      every_ = std::move(library);
    }
    names_[index] = interceptor.name;
    installed.priorities.fetch_or(bit, std::memory_order_release);
  }

 private:
  void check(const Interceptor& interceptor, uint32_t bit) const MUSTER_REQUIRES(mutex_) {
    const auto index = static_cast<size_t>(interceptor.priority);
    const auto refuse = [&](const std::string& why) {
      throw UsageError("MU315", "the interceptor '" + std::string(interceptor.name) + "' cannot have priority " +
                                    std::to_string(index) + ": " + why);
    };
    if (!names_[index].empty() && names_[index] != interceptor.name)
      refuse("'" + names_[index] + "' has it; add a priority of its own to enum Priority");
    if (bit & kEvery && interceptor.takes)
      refuse("priorities 8 to 23 take every operator; leave `takes` empty, or choose a priority of named operators");
    if (!(bit & kEvery) && !interceptor.takes)
      refuse("priorities 0 to 7 and 24 to 31 take named operators; say in `takes` which");
  }

  base::Mutex mutex_;
  std::array<std::string, kPositions> names_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<torch::Library> every_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<NamedKernels> on_thread_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<NamedKernels> autocast_ MUSTER_GUARDED_BY(mutex_);
};

// How the switches of a thread change its dispatch keys.
enum Key : uint32_t { named_included = 1, every_included = 2, every_excluded = 4 };

uint32_t keys_of(uint32_t switched, uint32_t there) {
  const auto priorities = switched & there;
  uint32_t keys = 0;
  if (priorities & kNamedOnThread) keys |= named_included;
  if (priorities & kEveryOnThread) keys |= every_included;
  // Only where something was switched off: a thread that has none yet may get one, and must see it.
  if ((there & kEveryOnTensor) && !(priorities & kEvery)) keys |= every_excluded;
  return keys;
}

// All at once: a scope around each operator of a recorded forward does this twice.
void set_keys(uint32_t changed, uint32_t keys) {
  constexpr c10::DispatchKeySet named(kNamedOperatorsKey), every(kEveryOperatorKey);
  auto local = c10::impl::tls_local_dispatch_key_set();
  const auto set = [&](c10::DispatchKeySet& all, c10::DispatchKeySet key, uint32_t bit) {
    if (changed & bit) all = keys & bit ? all | key : all - key;
  };
  set(local.included_, named, named_included);
  set(local.included_, every, every_included);
  set(local.excluded_, every, every_excluded);
  c10::impl::_force_tls_local_dispatch_key_set(local);
}

}  // namespace

const c10::FunctionSchema& Call::schema() const { return op_.schema(); }

std::span<c10::IValue> Call::arguments() const {
  const auto count = schema().arguments().size();
  return {stack_.data() + (stack_.size() - count), count};
}

void Call::proceed() {
  if (!waiting_) return op_.redispatchBoxed(below_, &stack_);
  const auto next = static_cast<size_t>(std::countr_zero(waiting_));
  waiting_ &= waiting_ - 1;
  installed.run[next](*this);
}

bool DisableVariable::allows() const {
  const char* value = std::getenv(variable);
  return !value || !*value || read_bool(value) == false;
}

std::string install(const Interceptor& interceptor) {
  const auto& variable = interceptor.disabled_by;
  if (!variable.allows())
    return std::string("the environment variable ") + variable.variable + " keeps it out of this process: unset it";
  try {
    Registry::of_process().install(interceptor);
  } catch (const c10::Error& error) {
    return std::string("another library of this process holds its dispatch key: run without that library (") +
           error.what_without_backtrace() + ")";
  }
  return {};
}

// Changes single keys instead of using LibTorch's guards: the two keys would need three guards in every scope.
InterceptorGuard::InterceptorGuard(Priorities which, bool on) noexcept : before_(switched_on) {
  const auto there = installed.priorities.load(std::memory_order_acquire);
  const auto chosen = which.bits & there;
  switched_on = on ? before_ | chosen : before_ & ~chosen;
  const auto keys = keys_of(switched_on, there);
  // Stored now, because an interceptor installed in the meantime would change the result.
  keys_before_ = keys_of(before_, there);
  keys_changed_ = keys_before_ ^ keys;
  if (keys_changed_) set_keys(keys_changed_, keys);
}

InterceptorGuard::~InterceptorGuard() {
  switched_on = before_;
  if (keys_changed_) set_keys(keys_changed_, keys_before_);
}

}  // namespace muster::hook
