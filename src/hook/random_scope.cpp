#include "muster/hook/detail/random_scope.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace muster::hook {
namespace {

thread_local RandomScope* current_scope = nullptr;

bool is_generator(const c10::Argument& argument) {
  static const auto kType = c10::OptionalType::create(c10::GeneratorType::get());
  return argument.type()->isSubtypeOf(*kType);
}

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments())
    if (is_generator(argument)) return true;
  return false;
}

bool draws_from_default(const c10::IValue& generator) {
  if (generator.isNone()) return true;
  return generator.isGenerator() && generator.toGenerator() == at::detail::getDefaultCPUGenerator();
}

/// The first tensor tells where the operator draws; one without tensors is made of others that have some.
bool draws_on_cpu(c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().is_cpu();
  return false;
}

void give_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& formal = op.schema().arguments();
  if (current_scope && draws_on_cpu(torch::jit::last(*stack, formal.size())))
    for (size_t i = 0; i < formal.size(); ++i) {
      auto& given = (*stack)[stack->size() - formal.size() + i];
      if (is_generator(formal[i]) && draws_from_default(given)) given = current_scope->generator();
    }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRandomKey), stack);
}

struct RandomKernels {
  RandomKernels() {
    others.fallback(torch::CppFunction::makeFallthrough());
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || op->operator_name().name.rfind("aten::", 0) != 0 || !takes_generator(op->schema())) continue;
      const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      random.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&give_generator>());
    }
  }
  torch::Library others{torch::Library::IMPL, "_", kRandomKey, __FILE__, __LINE__};
  torch::Library random{torch::Library::IMPL, "aten", kRandomKey, __FILE__, __LINE__};
};

}  // namespace

bool random_key_allowed() {
  const char* value = std::getenv(kNoRandomKeyVariable);
  return !value || !*value || std::string_view(value) == "0";
}

bool install_random_key() {
  static std::mutex mutex;
  static std::unique_ptr<RandomKernels> kernels;
  static bool refused = !random_key_allowed();
  const std::scoped_lock lock(mutex);
  if (kernels || refused) return !refused;
  try {
    kernels = std::make_unique<RandomKernels>();
  } catch (const c10::Error&) {  // another library holds the key
    refused = true;
  }
  return !refused;
}

RandomScope::RandomScope() : outer_(current_scope) {
  if (!install_random_key()) return;
  include_.emplace(kRandomKey);
  current_scope = this;
}

RandomScope::~RandomScope() {
  if (include_) current_scope = outer_;
}

void RandomScope::seed(uint64_t seed) noexcept {
  seed_ = seed;
  stale_ = true;
}

RandomScope* RandomScope::current() noexcept { return current_scope; }

const at::Generator& RandomScope::generator() {
  if (!generator_.defined()) generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
  else if (stale_) generator_.set_current_seed(seed_);
  stale_ = false;
  return generator_;
}

}  // namespace muster::hook
