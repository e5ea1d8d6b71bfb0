#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "base/mutex.h"
#include "base/text.h"
#include "graph/recording.h"
#include "graph/saved_tensors.h"
#include "muster/base/error.h"
#include "muster/graph/recompute.h"

namespace muster::graph {
namespace {

using Hooks = torch::autograd::SavedVariableHooks;

/// The state that a run of the function begins with.
struct RunState {
  struct Autocast {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<std::pair<at::Generator, at::Tensor>> generators;
  std::vector<Autocast> autocast;
  bool autocast_cache = true;

  static RunState of_now(const std::vector<at::Tensor>& inputs) {
    RunState state;
    std::vector<at::Device> devices{at::kCPU};
    for (const auto& input : inputs)
      if (input.defined() && std::find(devices.begin(), devices.end(), input.device()) == devices.end())
        devices.push_back(input.device());
    for (const auto device : devices) {
      const auto generator = at::globalContext().defaultGenerator(device);
      state.generators.emplace_back(generator, generator.get_state());
      state.autocast.push_back({device.type(), at::autocast::is_autocast_enabled(device.type()),
                                at::autocast::get_autocast_dtype(device.type())});
    }
    state.autocast_cache = at::autocast::is_autocast_cache_enabled();
    return state;
  }
  void restore() const {
    for (auto [generator, value] : generators) generator.set_state(value);
    for (const auto& one : autocast) {
      at::autocast::set_autocast_dtype(one.device, one.dtype);
      at::autocast::set_autocast_enabled(one.device, one.enabled);
    }
    at::autocast::set_autocast_cache_enabled(autocast_cache);
  }
};

thread_local int runs_again = 0;  // how many functions of this thread run again, one within another

std::string described(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " " + shape_text(tensor.sizes()) + " on " +
         tensor.device().str();
}

/// One saved tensor.
struct Slot {
  std::string first;  // what it was in the first run
  at::Tensor value;   // what it is in a later run, until backward has left
};

/// What runs of one function share.
class Frame {
 public:
  Frame(const std::vector<at::Tensor>& inputs, Rerun::Function again)
      : again_(std::move(again)), state_(RunState::of_now(inputs)) {
    for (const auto& input : inputs) {
      // Saved as an operator saves its inputs, so that a function around this one makes them again, too.
      inputs_.emplace_back(input, /*is_output=*/false);
      requires_grad_.push_back(input.defined() && input.requires_grad());
      versions_.push_back(input.defined() && !input.is_inference()
                              ? std::optional(Version{input.unsafeGetTensorImpl()->version_counter(), input._version()})
                              : std::nullopt);
    }
  }

  void note_first(const at::Tensor& tensor, const std::shared_ptr<Slot>& slot) {
    slot->first = described(tensor);
    slots_.push_back(slot);
  }
  at::Tensor unpack(Slot& slot);

 private:
  class Collecting;
  struct Version {
    c10::VariableVersion counter;
    int64_t then;
  };
  void run();

  Rerun::Function again_;
  RunState state_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::vector<std::optional<Version>> versions_;
  std::vector<std::weak_ptr<Slot>> slots_;
  base::Mutex mutex_;
};

/// The hooks of a later run: what it saves goes to the slots.
class Frame::Collecting final : public SavedTensorScope {
 public:
  explicit Collecting(std::vector<std::shared_ptr<Slot>> slots, size_t needed)
      : slots_(std::move(slots)), needed_(needed) {}
  std::unique_ptr<Hooks> hooks() override { return std::make_unique<Collect>(*this); }
  size_t saved() const noexcept { return next_; }
  /// An error that a pack hook cannot throw without being lost.
  const std::string& difference() const noexcept { return difference_; }

 private:
  struct Collect final : Hooks {
    explicit Collect(Collecting& scope) : scope(&scope) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      std::exchange(scope, nullptr)->take(tensor);
      value = tensor.detach();
    }
    // For a backward that the function runs itself.
    at::Tensor call_unpack_hook() override { return value; }
    Collecting* scope;
    at::Tensor value;
  };
  void take(const at::Tensor& tensor) {
    const auto i = next_++;
    if (i >= slots_.size()) return;
    if (const auto& slot = slots_[i]) {
      if (const auto now = described(tensor); now != slot->first && difference_.empty())
        difference_ = "the " + ordinal(i + 1) + " tensor that it saves was " + slot->first + " and is now " + now;
      slot->value = tensor.detach();
    }
    // Not at once: the operator may save a tensor before it has computed its values.
    if (next_ >= needed_) limit_.reach();
  }
  static std::string ordinal(size_t n) {
    const auto last = n % 10;
    const bool teen = n / 10 % 10 == 1;
    return std::to_string(n) + (teen || last == 0 || last > 3 ? "th" : last == 1 ? "st" : last == 2 ? "nd" : "rd");
  }

  std::vector<std::shared_ptr<Slot>> slots_;
  size_t needed_, next_ = 0;
  OperatorLimit limit_;
  std::string difference_;
};

at::Tensor Frame::unpack(Slot& slot) {
  const base::Lock lock(mutex_);
  if (!slot.value.defined()) run();
  // Given once: with a kept graph, another backward runs the function again.
  return std::exchange(slot.value, at::Tensor());
}

void Frame::run() {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (const auto& version = versions_[i]; version && version->counter.current_version() != version->then)
      throw UsageError("MU586",
                       "input " + std::to_string(i + 1) +
                           " of a function given to recompute() was changed in place before backward: change a "
                           "copy of it");
    const auto input = inputs_[i].unpack();
    inputs.push_back(input.defined() ? input.detach().requires_grad_(requires_grad_[i]) : input);
  }
  std::vector<std::shared_ptr<Slot>> slots;
  size_t needed = 0;
  for (const auto& weak : slots_) {
    slots.push_back(weak.lock());
    if (slots.back()) needed = slots.size();
  }
  // Random generators are the process's: no other thread's run may draw between.
  static base::Mutex one_at_a_time;
  std::optional<base::Lock> alone;
  if (runs_again == 0) alone.emplace(one_at_a_time);
  const auto ends = c10::make_scope_exit([] { --runs_again; });
  ++runs_again;
  const auto today = RunState::of_now(inputs);
  const auto put_back = c10::make_scope_exit([&] { today.restore(); });
  state_.restore();
  // LibTorch's cache would keep the casts of today's weights for the next forward.
  at::autocast::set_autocast_cache_enabled(false);
  const at::AutoGradMode with_gradients(true);
  Collecting collecting(std::move(slots), needed);
  try {
    again_(inputs);
  } catch (const OperatorLimit::Reached&) {}
  std::string difference = collecting.difference();
  if (difference.empty() && collecting.saved() < needed)
    difference = "it saved " + counted(static_cast<int64_t>(slots_.size()), "tensor") + " and now saves " +
                 std::to_string(collecting.saved());
  if (!difference.empty())
    throw UsageError("MU592", "a function given to recompute() does not do the same in backward: " + difference +
                                  "; let it depend on its inputs only, and keep no values between its calls");
}

/// The hooks of the first run.
class FirstRun final : public Hooks {
 public:
  explicit FirstRun(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  void call_pack_hook(const at::Tensor& tensor) override { frame_->note_first(tensor, slot_); }
  at::Tensor call_unpack_hook() override { return frame_->unpack(*slot_); }

 private:
  std::shared_ptr<Frame> frame_;
  std::shared_ptr<Slot> slot_ = std::make_shared<Slot>();
};

}  // namespace

class Rerun::Scope final : public SavedTensorScope {
 public:
  explicit Scope(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  std::unique_ptr<Hooks> hooks() override { return std::make_unique<FirstRun>(frame_); }

 private:
  std::shared_ptr<Frame> frame_;
};

Rerun::Rerun(const std::vector<at::Tensor>& inputs, Function again) {
  const auto* recording = Recording::current();
  if (!at::GradMode::is_enabled() || (recording && recording->in_block())) return;
  install_recorder();
  scope_ = std::make_unique<Scope>(std::make_shared<Frame>(inputs, std::move(again)));
}

Rerun::~Rerun() = default;

}  // namespace muster::graph
