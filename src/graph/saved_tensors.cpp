#include "graph/saved_tensors.h"

#include <string>
#include <typeinfo>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "muster/base/error.h"

namespace muster::graph {
namespace {

thread_local SavedTensorScope* current_scope = nullptr;
thread_local int backwards = 0;  // that run on this thread, one within another

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
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& gradients, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    ++backwards;
    const auto ends = c10::make_scope_exit([] { --backwards; });
    return torch::autograd::Engine::execute(roots, gradients, keep_graph, create_graph, accumulate_grad, outputs);
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

bool in_backward() noexcept { return backwards > 0; }

SavedTensorScope::SavedTensorScope() : outer_(current_scope) { current_scope = this; }
SavedTensorScope::~SavedTensorScope() { current_scope = outer_; }

}  // namespace muster::graph
