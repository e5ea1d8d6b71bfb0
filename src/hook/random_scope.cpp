#include "hook/random_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/function_schema.h>

namespace muster::hook {

bool is_generator(const c10::Argument& argument) {
  static const auto generator_type = c10::OptionalType::create(c10::GeneratorType::get());
  return argument.type()->isSubtypeOf(*generator_type);
}

namespace {

thread_local RandomScope* current_scope = nullptr;

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments())
    if (is_generator(argument)) return true;
  return false;
}

bool draws_from_default(const c10::IValue& generator) {
  if (generator.isNone()) return true;
  return generator.isGenerator() && generator.toGenerator() == at::detail::getDefaultCPUGenerator();
}

/// An operator draws on the device of its first tensor. An operator without tensors calls others that have some.
bool draws_on_cpu(c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().is_cpu();
  return false;
}

void give_generator(Call& call) {
  const auto& formal = call.schema().arguments();
  const auto given = call.arguments();
  if (current_scope && draws_on_cpu(given))
    for (size_t i = 0; i < formal.size(); ++i)
      if (is_generator(formal[i]) && draws_from_default(given[i])) given[i] = current_scope->generator();
  call.proceed();
}

constexpr Interceptor kRandomGenerator{.name = "random generator",
                                       .priority = Priority::random_generator,
                                       .takes = takes_generator,
                                       .run = give_generator,
                                       .disabled_by = kRandomKeySwitch};

}  // namespace

bool install_random_key() {
  static const bool installed_here = install(kRandomGenerator).empty();
  return installed_here;
}

RandomScope::RandomScope() : outer_(current_scope), on_(Priority::random_generator, install_random_key()) {
  if (install_random_key()) current_scope = this;
}

RandomScope::~RandomScope() { current_scope = outer_; }

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
