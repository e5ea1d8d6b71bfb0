#include "hook/gradient_hooks.h"

#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace muster::hook {

namespace autograd = torch::autograd;

class GradientHook::Chained final : public autograd::PostAccumulateGradHook {
 public:
  Chained(std::unique_ptr<PostAccumulateGradHook> before, std::shared_ptr<Function> mine)
      : before_(std::move(before)), mine_(std::move(mine)) {}
  void operator()(const autograd::Variable& leaf) override {
    if (before_) (*before_)(leaf);
    if (*mine_) (*mine_)(leaf);
  }
  bool belongs_to(const std::shared_ptr<Function>& owner) const { return mine_ == owner; }
  std::unique_ptr<PostAccumulateGradHook> release() { return std::move(before_); }

 private:
  std::unique_ptr<PostAccumulateGradHook> before_;
  std::shared_ptr<Function> mine_;
};

// Tensor::register_hook runs before accumulation; this slot, which holds one hook, runs after it. So hooks are chained.
GradientHook::GradientHook(const at::Tensor& leaf, Function function)
    : leaf_(leaf), function_(std::make_shared<Function>(std::move(function))) {
  auto before = std::move(autograd::impl::post_acc_grad_hooks(leaf));
  autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<Chained>(std::move(before), function_));
}

GradientHook::~GradientHook() {
  if (!function_) return;
  *function_ = nullptr;  // a later hook that chained ours keeps it in the chain, where it does nothing now
  auto& slot = autograd::impl::post_acc_grad_hooks(leaf_);
  if (auto* chained = dynamic_cast<Chained*>(slot.get()); chained && chained->belongs_to(function_))
    slot = chained->release();
}

CaptureHook::CaptureHook(const at::Tensor& leaf, std::function<void()> function) : leaf_(leaf) {
  // Captured by address: the hook belongs to the leaf, and a handle inside it would keep the leaf alive forever.
  auto* impl = leaf.unsafeGetTensorImpl();
  position_ = leaf_.register_hook([impl, function = std::move(function)](const at::Tensor&) {
    // Only the engine knows what this call is for: backward() captures nothing, and autograd::grad() captures the
    // gradient that would reach the leaf's accumulator.
    const auto* infos = autograd::get_current_graph_task_exec_info();
    if (!infos || infos->empty()) return;
    const at::Tensor self(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
    const auto node = autograd::impl::try_get_grad_accumulator(self);
    const auto found = node ? infos->find(node.get()) : infos->end();
    if (found != infos->end() && found->second.captures_ && !found->second.captures_->empty()) function();
  });
}

CaptureHook::~CaptureHook() {
  if (leaf_.defined()) leaf_.remove_hook(position_);
}

void at_end_of_backward(std::function<void()> function) {
  // A leaf's hook cannot know that it is the last one. The engine runs this callback after its last node.
  autograd::Engine::get_default_engine().queue_callback(std::move(function));
}

/// Between the last node of a backward and its end, the current node is the one that called this backward.
bool backward_is_nested() { return static_cast<bool>(autograd::get_current_node()); }

// Backwards overlap (nested in one another, or on several threads), and only the engine tells them apart.
int64_t current_backward() { return autograd::get_current_graph_task_id(); }

// The engine enables gradients in hooks if create_graph is set.
bool backward_is_recorded() { return at::GradMode::is_enabled(); }

namespace {

// A node is owned by a shared_ptr up to LibTorch 2.12 and by an intrusive_ptr in later versions.
using NodePtr = decltype(autograd::impl::try_get_grad_accumulator(std::declval<const at::Tensor&>()));
template <class P>
struct WeakOf {
  using type = c10::weak_intrusive_ptr<typename P::element_type>;
};
template <class T>
struct WeakOf<std::shared_ptr<T>> {
  using type = std::weak_ptr<T>;
};

// A leaf holds its accumulator weakly and graphs hold it strongly, so it lives exactly as long as some graph does.
NodePtr node_of(const at::Tensor& leaf) { return autograd::impl::try_get_grad_accumulator(leaf); }

}  // namespace

struct GraphUse::Noted {
  std::optional<WeakOf<NodePtr>::type> node;
};

GraphUse::GraphUse(const std::vector<at::Tensor>& leaves) {
  for (const auto& leaf : leaves) add(leaf);
}

void GraphUse::add(const at::Tensor& leaf) {
  leaves_.push_back(leaf);
  noted_.push_back(std::make_shared<Noted>());
}

void GraphUse::note() noexcept {
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (const auto node = node_of(leaves_[i])) noted_[i]->node.emplace(node);
}

bool GraphUse::alive(size_t i) const { return static_cast<bool>(node_of(leaves_[i])); }

bool GraphUse::noted(size_t i) const {
  const auto node = node_of(leaves_[i]);
  return node && noted_[i]->node && noted_[i]->node->lock() == node;
}

}  // namespace muster::hook
