#include "graph/saved_tensors.h"

#include <string>
#include <typeinfo>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "muster/base/error.h"

namespace muster::graph {
namespace {

thread_local SavedTensorScope* current_scope = nullptr;

/// LibTorch asks its engine for the hooks of a tensor that it saves. Its own engine has none without Python.
class Engine final : public torch::autograd::Engine {
 public:
  /// LibTorch starts the threads of devices once per process: if its own engine has run a backward, this one's would
  /// not be started.
  Engine() {
    initialize_device_threads_pool();
    if (!thread_pool_shared_) start_device_threads();
  }
  ~Engine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_scope ? current_scope->hooks() : nullptr;
  }
  /// Never destroyed, like LibTorch's own: its threads run until the process ends.
  static torch::autograd::Engine& of_process() {
    [[gnu::used]] static Engine* const engine = new Engine;  // reachable, so that leak checkers do not report it
    return *engine;
  }
};

std::string install_once() {
  const auto& engine = torch::autograd::Engine::get_default_engine();
  if (typeid(engine) != typeid(torch::autograd::Engine))
    return "another library of this process has installed its own (Python does): run without that library";
  torch::autograd::set_default_engine_stub(&Engine::of_process);
  return {};
}

}  // namespace

void install_engine() {
  static const std::string refusal = install_once();
  if (!refusal.empty()) throw UsageError("MU587", "recompute needs its own autograd engine, but " + refusal);
}

SavedTensorScope::SavedTensorScope() : outer_(current_scope) { current_scope = this; }
SavedTensorScope::~SavedTensorScope() { current_scope = outer_; }

}  // namespace muster::graph
