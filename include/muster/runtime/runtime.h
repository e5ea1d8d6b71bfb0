#pragma once

#include "muster/checkpoint/options.h"
#include "muster/data/loader.h"
#include "muster/optim/options.h"
#include "muster/parallel/local_sgd.h"
#include "muster/parallel/sync_batch_norm.h"
#include "muster/runtime/accumulation.h"
#include "muster/runtime/callback.h"
#include "muster/runtime/gathering.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"
#include "muster/runtime/options.h"
#include "muster/runtime/prepare.h"
#include "muster/runtime/profile.h"
#include "muster/runtime/saving.h"
#include "muster/runtime/torch_save.h"

#include <c10/core/Device.h>

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace muster {

/// One program on one rank: its group, devices, strategy, precision, and everything it prepared.
/// The doors Accelerator and Fabric show parts of it under the names their users know and add no logic.
/// Thread safety: one thread at a time.
class Runtime : public runtime::Saving {
 public:
  explicit Runtime(const RuntimeOptions& options);
  /// If an exception ends its scope, it ends the group of all ranks: the others get MU053 at once instead of waiting.
  ~Runtime();
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;

  /// Takes modules, optimizers, LibTorch's schedulers and muster::DataLoaders, in any order and number, and returns their
  /// handles in the same order; one argument comes back bare. Temporaries are owned, named objects borrowed.
  /// Collective: with the same arguments on every rank.
  template <class... T>
  auto prepare(T&&... objects) {
    static_assert(sizeof...(T) > 0, "prepare takes at least one object");
    return runtime::prepare(*parts_, std::forward<T>(objects)...);
  }

  /// Backward of the loss, scaled and weighted as precision and accumulation say, with gradients communicated as the strategy
  /// does. Collective: unless inside no_sync.
  void backward(const at::Tensor& loss, BackwardOptions options = {});

  /// One micro-batch of the loader in use, to be opened before its forward: at the end of a window of gradient_accumulation
  /// micro-batches, or of the loader, gradients are communicated and optimizers step.
  template <class... M>
  [[nodiscard]] AccumulationScope accumulate(const Model<M>&... models) {
    return AccumulationScope(next_micro_batch(), {models.prepared()->managed...});
  }
  /// The micro-batch in hand ends its window. True before the first one.
  bool sync_gradients() const;
  int gradient_accumulation_steps() const;
  /// Throws: ConfigError (MU181) for less than one.
  void set_gradient_accumulation_steps(int steps);

  /// Gradients of these models stay local until it is destroyed; the next backward communicates their sum.
  template <class... M>
  [[nodiscard]] runtime::NoSyncScope no_sync(const Model<M>&... models) {
    return runtime::NoSyncScope({models.prepared()->managed...}, true);
  }
  /// As no_sync; does nothing where `enabled` is false.
  template <class M>
  [[nodiscard]] runtime::NoSyncScope no_backward_sync(const Model<M>& model, bool enabled = true) {
    return runtime::NoSyncScope({model.prepared()->managed}, enabled);
  }
  /// Autocast as the precision says, for code outside a model's forward, such as the loss; or off, inside of one.
  [[nodiscard]] precision::AutocastScope autocast(AutocastOptions options = {}) const;

  /// Divides gradients by the scale of their loss, under "16-mixed"; once, however often it is called. Clipping does it itself.
  /// Collective: as clipping, of a named optimizer or the only one. Of several none is named here: a rank whose loss missed a model sees
  /// the others' gradients from the step on.
  void unscale_gradients();
  /// As above, of one optimizer.
  void unscale_gradients(const Optimizer& optimizer);
  /// Some prepared optimizer's last step() was skipped, because gradients were not finite.
  bool optimizer_step_was_skipped() const;

  /// Scales the model's gradients so that their norm is at most max_norm; returns the norm before that. While an accumulation
  /// window goes on, clipping does nothing and returns 0.
  /// Collective: where the strategy shards gradients, and where a rank's loss missed the model (see Optimizer::step()).
  template <class M>
  double clip_grad_norm_(const Model<M>& model, double max_norm, ClipOptions options = {}) {
    return clip_grad_norm_(model.parameters(), max_norm, options);
  }
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options = {});
  /// The same for each parameter group by itself, with one max_norm or one for each.
  std::vector<double> clip_grad_norm_(const Optimizer& optimizer, const PerGroup<double>& max_norm, ClipOptions options = {});
  /// Clamps every gradient element to [-clip_value, clip_value].
  template <class M>
  void clip_grad_value_(const Model<M>& model, double clip_value) { clip_grad_value_(model.parameters(), clip_value); }
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// Clips what the optimizer updates, by norm (returned) or by value (returns 0).
  double clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options);

  /// Runs `f`, a loop over batches of which ranks may have unequally many, as without even_batches. A rank whose `f` has returned takes
  /// part in what the others still communicate, with zeros for gradients, until all have returned; then all go on from the last
  /// step: parameters, buffers, states of optimizers, loss scales and schedulers (LibTorch's ReduceLROnPlateauScheduler keeps what it counted).
  /// In `f`, call no other collective; for values, use collector(). Models: those that `f` trains; none: all prepared ones.
  /// Throws: UsageError (MU117) for sharded models; (MU118, MU119) if ranks do different things or one of them throws.
  /// Collective.
  template <class... M>
  void join_uneven_inputs(const std::function<void()>& f, const UnevenInputsOptions& options = {}, const Model<M>&... models) {
    run_joined({models.prepared()->managed...}, f, options);
  }
  /// The loader, to begin at this batch in its next pass only; in constant time, or as fast as a stream skips.
  /// Throws: UsageError (MU108) for a batch beyond its end.
  template <class Batch>
  static DataLoader<Batch> skip_first_batches(DataLoader<Batch> loader, int64_t batches) {
    return muster::skip_first_batches(std::move(loader), batches);
  }

  /// Training in which ranks average parameters every few steps instead of gradients in every step, as long as it lives.
  template <class M>
  [[nodiscard]] LocalSGD local_sgd(const Model<M>& model, LocalSgdOptions options = {}) const { return LocalSGD(group(), model, options); }
  /// Lets every BatchNorm in the model take its statistics in training from all ranks; returns how many there are. Collective.
  template <class M>
  int64_t convert_sync_batchnorm(const Model<M>& model) const { return muster::convert_sync_batchnorm(*model, group()); }

  /// 0, 1, ... count - 1; after load_state() without those that the checkpoint has behind it.
  auto epochs(int64_t count) { return std::views::iota(first_epoch(count), count); }
  /// Seeds all generators, alike on every rank, or with the rank added. Loaders prepared later shuffle by it.
  void set_seed(uint64_t seed, bool per_rank = false);

  /// Writes the model's weights as safetensors into `folder`: one file, or several and an index. Collective.
  template <class M>
  void save_model(const Model<M>& model, const std::filesystem::path& folder, const SaveWeightsOptions& options = {}) const {
    write_model(*model.prepared(), folder, options);
  }
  /// Runs `f` while the module's own parameters hold whole values, to be read or changed, on all ranks or the first; where nothing is
  /// sharded it is just called. Collective: where parameters are sharded, between forward and backward passes.
  /// Throws: what `f` throws; as ManagedModel::summon_full_params.
  template <class M, std::invocable<> F>
  void summon_full_params(const Model<M>& model, F&& f, const FullParamsOptions& options = {}) const {
    model.prepared()->managed->summon_full_params(std::forward<F>(f), options);
  }
  template <class M>
  std::shared_ptr<M> unwrap_model(const Model<M>& model) const { return model.ptr(); }

  /// Takes these handles' objects away, so that their memory is free once nobody else holds them; the handles are empty from
  /// then on. Begins a new accumulation window, and gives cached memory of accelerators back.
  template <class... T>
  void free_memory(T&... handles) {
    ([](auto& handle) { [[maybe_unused]] const auto gone = std::move(handle); }(handles), ...);
    forget_freed();
  }
  /// Calls a function of every callback that has it: call(&Mine::on_epoch_end, epoch).
  template <class C, class... P, class... A>
  void call(void (C::*member)(P...), A&&... arguments) const {
    runtime::call_each(callbacks(), member, std::forward<A>(arguments)...);
  }

  /// Runs `f` and writes what all ranks did meanwhile as one trace, for chrome://tracing. Collective.
  template <class F>
  void profile(F&& f, const ProfileOptions& options = {}) const {
    runtime::Profile recording(trace(), group(), options);
    std::forward<F>(f)();
    recording.write();
  }

  /// Every decision taken and its reason, one line each.
  std::string plan() const;

 private:
  std::shared_ptr<runtime::Accumulation> next_micro_batch();
  void forget_freed();
  void run_joined(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                  const UnevenInputsOptions& options);
  const std::shared_ptr<Trace>& trace() const;
  const std::vector<std::shared_ptr<Callback>>& callbacks() const;
  void write_model(const runtime::PreparedModel& model, const std::filesystem::path& folder, const SaveWeightsOptions& options) const;
};

}  // namespace muster
