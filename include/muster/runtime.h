#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/irange.h>
#include <torch/serialize/archive.h>

#include "muster/base/format.h"
#include "muster/base/format_text.h"
#include "muster/checkpoint/options.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/data/loader.h"
#include "muster/data/progress_bar.h"
#include "muster/optim/clip.h"
#include "muster/optim/options.h"
#include "muster/parallel/local_sgd.h"
#include "muster/parallel/sharded_options.h"
#include "muster/precision/autocast.h"
#include "muster/precision/grad_scaler.h"
#include "muster/runtime/accumulation.h"
#include "muster/runtime/batch_size_search.h"
#include "muster/runtime/callback.h"
#include "muster/runtime/detail/gather_for_metrics.h"
#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/detail/process_control.h"
#include "muster/runtime/detail/values.h"
#include "muster/runtime/evaluation_scope.h"
#include "muster/runtime/flops.h"
#include "muster/runtime/init_trackers.h"
#include "muster/runtime/loader_preparation.h"
#include "muster/runtime/logger.h"
#include "muster/runtime/loop_access.h"
#include "muster/runtime/metrics.h"
#include "muster/runtime/model.h"
#include "muster/runtime/opened_checkpoint.h"
#include "muster/runtime/optimizer.h"
#include "muster/runtime/options.h"
#include "muster/runtime/outside_forward.h"
#include "muster/runtime/padding.h"
#include "muster/runtime/placement.h"
#include "muster/runtime/saved_item.h"
#include "muster/runtime/split.h"
#include "muster/schedule/schedulers.h"
#include "muster/strategy/options.h"
#include "muster/track/trackers.h"
#include "muster/tree/state.h"
#include "muster/version.h"

namespace muster::runtime {

/// Waits until the module's parameters hold their values, since LibTorch's archives read their memory without calling
/// Muster.
/// Throws: UsageError (MU161), naming the parameter, if one is sharded.
void prepare_for_archive(const torch::nn::Module& module);

template <class T>
inline constexpr bool is_prepared_model = false;
template <class M>
inline constexpr bool is_prepared_model<Model<M>> = true;

}  // namespace muster::runtime

namespace torch {

/// LibTorch's torch::save for modules, called once their values can be read.
template <typename Value, typename... SaveToArgs>
  requires(muster::runtime::ModuleHolder<Value> || muster::runtime::ModulePointer<Value>)
void save(const Value& value, SaveToArgs&&... args) {
  if (const auto module = muster::runtime::module_pointer(value)) muster::runtime::prepare_for_archive(*module);
  serialize::OutputArchive archive(std::make_shared<jit::CompilationUnit>());
  archive << value;
  archive.save_to(std::forward<SaveToArgs>(args)...);
}

/// Does not compile; the message tells what to call instead.
template <typename Value, typename... SaveToArgs>
  requires(muster::runtime::is_prepared_model<Value> || std::same_as<Value, muster::Optimizer>)
void save(const Value&, SaveToArgs&&...) {
  static_assert(!muster::runtime::is_prepared_model<Value>,
                "torch::save takes no prepared model: write its weights by save_model(model, folder) of the object "
                "that prepared it");
  static_assert(muster::runtime::is_prepared_model<Value>,
                "torch::save takes no prepared optimizer: write it with the model by save_state or save of the object "
                "that prepared it");
}

}  // namespace torch

namespace muster {

/// Removes a hook; a second remove() does nothing.
class RemovableHandle {
 public:
  /// `remove` removes the hook.
  explicit RemovableHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  /// Removes the hook.
  void remove() {
    if (auto remove = std::exchange(remove_, {})) remove();
  }

 private:
  std::function<void()> remove_;
};

/// Selects the entries of a named item that are saved: those for which the function returns true.
using SaveFilter = std::map<std::string, std::function<bool(const std::string& name, const State& value)>>;

/// The part of Accelerator, Fabric and Trainer that trains on one rank: its group, device, strategy and precision, and
/// all prepared objects. Accelerator and Fabric derive from it, and add the names that their users know. See
/// docs/decisions/0166-one-public-runtime.md.
/// The functions are in four sections: ranks, values, training, state.
/// Thread safety: one thread at a time.
/// Collective: the functions marked so, on every rank, in one order.
class Runtime {
 public:
  /// Joins the group of all ranks if a launcher has started the program; otherwise launch() does, if options.devices
  /// asks for several ranks. Collective, if it joins. Throws: ConfigError for options that are invalid or cannot be
  /// satisfied here.
  explicit Runtime(const RuntimeOptions& options);
  /// If an exception destroys the runtime, it ends the group of all ranks: the other ranks get MU053 at once instead of
  /// waiting.
  ~Runtime();
  /// The runtime moved from may only be destroyed.
  Runtime(Runtime&&) noexcept;
  /// The runtime moved from may only be destroyed.
  Runtime& operator=(Runtime&&) noexcept;

  /// @name Ranks
  /// @{

  /// Starts the other local ranks if no launcher did, and joins the group. The code before this call runs in every
  /// rank. A second call does nothing. Collective.
  void launch();

  /// This rank's number in the job, from 0.
  int rank() const;
  /// This rank's number on its node, from 0.
  int local_rank() const;
  /// The number of this rank's node, from 0.
  int node_rank() const;
  /// How many ranks the job has.
  int world_size() const;
  /// Whether this is rank 0.
  bool is_main() const { return rank() == 0; }
  /// Whether this is the first rank of its node.
  bool is_local_main() const { return local_rank() == 0; }
  /// Whether this rank has the highest number of the job.
  bool is_last() const { return rank() == world_size() - 1; }
  /// The device that this rank trains on.
  c10::Device device() const;
  /// The group of all ranks. Throws: UsageError (MU172) before launch() if several ranks were asked for.
  const comm::Communicator& group() const;
  /// Waits until every rank has called it. Collective.
  void barrier() const;

  /// Returns f as a function that runs on the main rank only; on other ranks a call does nothing. The function returns
  /// the result of f as an optional. In a world of one, this function and its variants for other ranks always run f.
  template <class F>
  auto on_main_process(F f) const {
    return on_ranks([](const auto& cluster) { return cluster.rank == 0; }, std::move(f));
  }
  /// Returns f as a function that runs on the first rank of each node only; see on_main_process().
  template <class F>
  auto on_local_main_process(F f) const {
    return on_ranks([](const auto& cluster) { return cluster.local_rank == 0; }, std::move(f));
  }
  /// Returns f as a function that runs on the last rank only; see on_main_process().
  template <class F>
  auto on_last_process(F f) const {
    return on_ranks([](const auto& cluster) { return cluster.rank == cluster.world_size - 1; }, std::move(f));
  }
  /// Returns f as a function that runs on rank `index` only; see on_main_process().
  template <class F>
  auto on_process(int index, F f) const {
    return on_ranks([index](const auto& cluster) { return cluster.rank == index; }, std::move(f));
  }
  /// Returns f as a function that runs on local rank `index` of each node only; see on_main_process().
  template <class F>
  auto on_local_process(int index, F f) const {
    return on_ranks([index](const auto& cluster) { return cluster.local_rank == index; }, std::move(f));
  }

  /// Runs `f` on the main rank first, then on the others; if it throws on the main rank, all ranks throw. Collective.
  template <class F>
  auto main_process_first(F&& f) const {
    return runtime::first_here(group(), is_main(), std::forward<F>(f));
  }
  /// Runs `f` on the first rank of each node first, then on the others; if it throws there, all ranks throw.
  /// Collective.
  template <class F>
  auto local_main_process_first(F&& f) const {
    return runtime::first_here(group(), is_local_main(), std::forward<F>(f));
  }

  /// Prints a line, on the main rank only: print("epoch {}: {:.2f}%", epoch, 100.0 * right / seen).
  template <class... A>
  void print(FormatText<std::type_identity_t<A>...> text, const A&... values) const {
    if (is_main()) print_line(sizeof...(A) == 0 ? std::string(text.text()) : formatted(text.text(), values...));
  }
  /// A stream that prints line by line, as print() does, on the main rank only. A flush prints an unfinished line. The
  /// stream lives as long as the runtime.
  std::ostream& out() const;
  /// Returns a logger for the diagnostic log, which writes each line once for all ranks.
  Logger logger(std::string name = "muster") const;
  /// A progress bar for a pass over the loader, as muster::progress(); shown on the main rank only, even if the loader
  /// was not prepared.
  template <class L>
  ProgressBar<L> progress(const L& loader, std::string title = {}, ProgressOptions options = {}) const {
    options.quiet = options.quiet || !is_main();
    return muster::progress(loader, std::move(title), std::move(options));
  }

  /// Sets this rank's flag, which check_trigger() reads. Not collective.
  void set_trigger();
  /// Returns whether any rank has called set_trigger() since the last call, and clears the flags of all ranks.
  /// Collective.
  bool check_trigger();

  /// Makes the program record SIGTERM and SIGUSR1 for signal_received() from now on, instead of ending. A second call
  /// does nothing.
  void catch_signals();
  /// Returns the signal that any rank has received, or 0. The result is equal on all ranks, so that they save and exit
  /// at one step. A received signal is not cleared. Collective.
  int signal_received();

  /// Returns the decisions that the runtime has made and their reasons, one line each.
  std::string plan() const;

  /// Calls f(batch_size) with smaller and smaller sizes until no rank runs out of memory; all ranks try the same sizes.
  /// Returns the size, or a pair of the size and the result of f. Requires: f itself prepares the objects that it
  /// trains. Collective.
  /// Throws: UsageError (MU185) if no size fits; any other exception of f.
  template <class F>
  auto find_executable_batch_size(F&& f, const BatchSizeOptions& options = {}) {
    return runtime::find_executable_batch_size(group(), trial_group(), std::forward<F>(f), options);
  }

  /// @}
  /// @name Values
  /// Operations on tensors in any nesting of tuples, lists, maps, optionals and structs. Collective unless a function
  /// says otherwise, with values of the same structure on every rank.
  /// Throws: UsageError (MU065), on every rank, if lists, maps or optionals hold tensors in different places; (MU177)
  /// for an undefined tensor, except in broadcast() on the receiving ranks.
  /// @{

  /// Concatenates the tensors of all ranks along the first dimension, in rank order. A 0-dim tensor counts as one of
  /// shape [1].
  template <class... T>
  auto gather(const T&... values) const {
    return runtime::gather(group(), values...);
  }
  /// Gathers values of the current batch without the samples that the loader repeated to fill its last step, so that
  /// every sample counts once. This applies to tensors with one row per sample of this rank's batch, and to lists of
  /// strings or numbers with one element per sample; any other tensor or list is gathered whole. If a value has this
  /// length by chance but does not belong to the batch, pass it as per_rank(value); the result is again a plain value.
  /// If ranks have different numbers of batches, use collector().
  template <class... T>
  auto gather_for_metrics(const T&... values) const {
    return runtime::gather_for_metrics(group(), runtime::step_rows(*state_), values...);
  }
  /// Returns a collector, which gathers the values of an epoch's batches once, at the end; exact for every loader. Not
  /// collective.
  template <class... T>
  MetricsCollector<T...> collector() const {
    return MetricsCollector<T...>(group(), [state = state_] { return runtime::step_rows(*state); });
  }
  /// Stacks the tensors of all ranks along a new first dimension, whose size is the world size.
  template <class T>
  T all_gather(const T& value) const {
    return runtime::all_gather(group(), value);
  }
  /// Returns a new value with the "sum", "mean", "min", "max" or "product" over ranks of every tensor in `value`, or of
  /// a single number (numbers next to tensors are not reduced). Throws: ConfigError (MU054) for a mean of integers.
  template <class T>
  T reduce(const T& value, std::string_view op = "sum") const {
    return runtime::reduce(group(), value, op);
  }
  /// Returns the value of rank `source`.
  template <class T>
  T broadcast(const T& value, int source = 0) const {
    return runtime::broadcast(group(), value, source);
  }
  /// Pads tensors with options.value so that dimension options.dim is as long as on the rank where it is longest. A
  /// 0-dim tensor counts as one of shape [1]. Throws: ConfigError (MU060) if a tensor does not have this dimension.
  template <class T>
  T pad_across_processes(const T& value, const PadOptions& options = {}) const {
    return runtime::pad_across_processes(group(), value, options);
  }
  /// Returns the value of rank `source`, sent as bytes: strings, numbers, lists and maps of them, structs; see
  /// tree/detail/pack.h.
  template <class T>
  T broadcast_object(const T& value, int source = 0) const {
    return runtime::broadcast_object(group(), value, source);
  }
  /// Returns a list of the values of all ranks, sent as by broadcast_object(); if the values are lists, one list of all
  /// their elements.
  template <class T>
  auto gather_object(const T& value) const {
    return runtime::gather_object(group(), value);
  }
  /// Returns this rank's part of a list or a tensor, or of every one in a map, tuple or struct. Parts are contiguous;
  /// if the length is not divisible by the world size, the first ranks get one element more. Not collective.
  template <class T>
  T split_between_processes(const T& value, const SplitOptions& options = {}) const {
    return runtime::split_between_processes(rank(), world_size(), value, options);
  }

  /// @}
  /// @name Training
  /// @{

  /// Takes modules, optimizers, schedulers (Muster's or LibTorch's), muster::DataLoaders, and functions that make them
  /// (see detail/prepare.h), in any order. Returns their handles in that order, as a tuple or, for one object, bare.
  /// Temporaries are owned, named objects are borrowed.
  /// Gradients that a module already has count as those of a backward in no_sync(): the next backward communicates the
  /// sum.
  /// Collective: with equal arguments on every rank. Throws: ConfigError (MU150), on every rank, if ranks pass
  /// different modules, or optimizers with different options; UsageError (MU581) for a module that shares a parameter
  /// with a prepared module.
  template <class... T>
    requires(!std::same_as<std::remove_cvref_t<T>, PrepareOptions> && ...)
  auto prepare(T&&... objects) {
    return prepare(PrepareOptions(), std::forward<T>(objects)...);
  }
  /// Prepares objects with the given options: prepare({.move_to_device = false}, net). Collective.
  /// Throws: ConfigError (MU566) if an option has neither one value nor one for each object; as prepare(objects...).
  template <class... T>
  auto prepare(const PrepareOptions& options, T&&... objects) {
    static_assert(sizeof...(T) > 0, "prepare takes at least one object");
    return runtime::prepare(*state_, runtime::moves_of(options, sizeof...(T)), std::forward<T>(objects)...);
  }

  /// Runs backward of the loss, scaled for the precision and weighted for accumulation. The strategy communicates the
  /// gradients. Collective, except inside no_sync().
  void backward(const at::Tensor& loss, BackwardOptions options = {});

  /// Opens one micro-batch of the loader in use; call this function before the forward. At the end of a window of
  /// gradient_accumulation_steps() micro-batches, or of the loader, gradients are communicated and optimizers step.
  template <class... M>
  [[nodiscard]] AccumulationScope accumulate(const Model<M>&... models) {
    return AccumulationScope(next_micro_batch(), {runtime::managed_by(*models.prepared())...});
  }
  /// Whether the current micro-batch ends its window; also true before the first micro-batch.
  bool sync_gradients() const;
  /// The number of micro-batches in a window.
  int gradient_accumulation_steps() const;
  /// Sets the number of micro-batches in a window, from the next window on.
  /// Throws: ConfigError (MU181) for less than one.
  void set_gradient_accumulation_steps(int steps);
  /// Keeps gradients of these models local until the scope is destroyed; the next backward communicates their sum.
  template <class... M>
  [[nodiscard]] runtime::NoSyncScope no_sync(const Model<M>&... models) {
    return runtime::NoSyncScope({runtime::managed_by(*models.prepared())...}, true);
  }
  /// no_sync() if `enabled` is true; otherwise does nothing.
  template <class M>
  [[nodiscard]] runtime::NoSyncScope no_backward_sync(const Model<M>& model, bool enabled = true) {
    return runtime::NoSyncScope({runtime::managed_by(*model.prepared())}, enabled);
  }
  /// Switches autocast on as in a forward, for code outside a forward, such as the loss; or switches it off inside a
  /// forward.
  [[nodiscard]] precision::AutocastScope autocast(const AutocastOptions& options = {}) const;
  /// Opens an evaluation of models or modules, as muster::evaluation(): they are in eval mode, without gradients, until
  /// the scope ends.
  template <class... M>
  EvaluationScope evaluation(M&&... models) const {
    return muster::evaluation(models...);
  }
  /// Under "16-mixed", divides gradients by the scale of their loss; repeated calls do nothing. Clipping calls this
  /// function.
  /// Collective: as clipping, if there is one optimizer. With several optimizers, a rank whose loss did not use a model
  /// gets the other ranks' gradients only in step().
  void unscale_gradients();
  /// Divides the gradients of one optimizer by the scale of their loss. Collective: as clipping.
  void unscale_gradients(const Optimizer& optimizer);
  /// Whether the last step() of any prepared optimizer, steps within a window aside, was skipped because gradients or
  /// their norm were not finite. Waits for the device as Optimizer::step_was_skipped() does.
  bool optimizer_step_was_skipped() const;

  /// Scales the model's gradients so that their norm is at most max_norm; returns the norm before scaling. Before the
  /// last micro-batch of an accumulation window, clipping does nothing and returns 0. The norm of gradients on a device
  /// goes to the host only when it is read (GradNorm).
  /// Collective: if the strategy shards gradients, if a rank's loss did not use the model (see Optimizer::step()), and
  /// under local SGD with ClipOptions::skip_if_nonfinite or error_if_nonfinite.
  template <class M>
  GradNorm clip_grad_norm_(const Model<M>& model, double max_norm, ClipOptions options = {}) {
    return clip_grad_norm_(model.parameters(), max_norm, options);
  }
  /// Clips the gradients of these parameters by their norm, as clip_grad_norm_() of a model does.
  GradNorm clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options = {});
  /// Clips the gradients of each parameter group by its own norm, with one max_norm or one for each.
  GradNorms clip_grad_norm_(const Optimizer& optimizer, const PerGroup<double>& max_norm, ClipOptions options = {});
  /// Clamps every gradient element of the model to [-clip_value, clip_value].
  template <class M>
  void clip_grad_value_(const Model<M>& model, double clip_value) {
    clip_grad_value_(model.parameters(), clip_value);
  }
  /// Clamps every gradient element of these parameters to [-clip_value, clip_value].
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Clips the gradients of the optimizer's parameters, by norm (returned) or by value (returns 0).
  /// Throws: ConfigError (MU179) unless exactly one of max_norm and clip_val is given.
  GradNorm clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options);

  /// Runs `f`, a loop over batches whose number may differ between ranks, for example with even_batches off. A rank
  /// whose `f` has returned takes part in the communication of the others, with zeros as gradients, until all have
  /// returned. All ranks then continue from the last step: parameters, buffers, optimizer states, loss scales and
  /// schedulers (LibTorch's ReduceLROnPlateauScheduler keeps its counts). In `f`, call no other collective; for values,
  /// use collector(). `models`: the models that `f` trains; if none is given, all prepared models. Collective.
  /// With a sharded model, a rank whose `f` has returned also clips, steps and clears its shards as the others do; your
  /// callbacks run only on ranks that have a batch.
  /// Throws: UsageError (MU117) for synchronised batch normalization; (MU118, MU119) if ranks run different steps or
  /// one of them throws; (MU585) for what ranks without a batch cannot follow: a closure, an AveragedModel, a loop
  /// inside the loop, accumulate() with divide_by_initial_world_size off.
  template <class... M>
  void join_uneven_inputs(const std::function<void()>& f, const UnevenInputsOptions& options = {},
                          const Model<M>&... models) {
    run_joined({runtime::managed_by(*models.prepared())...}, f, options);
  }
  /// Returns the loader, which begins its next pass (only that pass) at this batch: in constant time or, for a stream,
  /// by skipping samples. Throws: UsageError (MU108) for a batch beyond its end.
  template <class Batch>
  static DataLoader<Batch> skip_first_batches(DataLoader<Batch> loader, int64_t batches) {
    return muster::skip_first_batches(std::move(loader), batches);
  }
  /// Makes ranks average parameters every few steps, instead of gradients in every step, while the returned object
  /// lives.
  template <class M>
  [[nodiscard]] LocalSGD local_sgd(const Model<M>& model, const LocalSgdOptions& options = {}) const {
    return LocalSGD(group(), model, options);
  }
  /// Makes every BatchNorm in the model use statistics of all ranks in training; returns their number. Collective.
  template <class M>
  int64_t convert_sync_batchnorm(const Model<M>& model) const {
    return convert_batch_norms(*model);
  }
  /// Returns the range 0, 1, ... count - 1; after load_state(), without the epochs that the checkpoint has completed.
  auto epochs(int64_t count) { return c10::irange(first_epoch(count), count); }
  /// Seeds all generators, with one seed on every rank or with the rank added to it. Loaders that are prepared later
  /// use it for their shuffle.
  void set_seed(uint64_t seed, bool per_rank = false);
  /// Copies rank 0's states of the selected default generators of LibTorch, and of the given generators, to all ranks:
  /// synchronize_rng_states({.cpu = true}, mine).
  /// Collective. Throws, on all ranks: UsageError (MU328) if ranks pass different generators; (MU329) for an undefined
  /// generator.
  template <std::same_as<at::Generator>... G>
  void synchronize_rng_states(const SyncedGenerators& kinds, const G&... generators) const {
    synchronize(kinds, {generators...});
  }

  /// Empties these handles, so that the memory of their objects is freed once nothing else holds them. Also begins a
  /// new accumulation window, and releases the cached memory of accelerators.
  template <class... T>
  void free_memory(T&... handles) {
    ([](auto& handle) { [[maybe_unused]] const auto gone = std::move(handle); }(handles), ...);
    forget_freed();
  }
  /// Calls a member function of every callback whose class has it: call(&Mine::on_epoch_end, epoch).
  template <class C, class... P, class... A>
  void call(void (C::*member)(P...), A&&... arguments) const {
    runtime::call_each(callbacks(), member, std::forward<A>(arguments)...);
  }
  /// Runs `f` and writes one trace of the activity of all ranks during the call, for chrome://tracing. Collective.
  template <class F>
  void profile(F&& f, const ProfileOptions& options = {}) const {
    record_profile([&f] { std::forward<F>(f)(); }, options);
  }

  /// @}
  /// @name State
  /// Saves and loads the prepared objects. A checkpoint is a folder, or a set of files in project.storage; it appears
  /// complete or not at all, and all ranks must see the same folder or storage (docs/formats/checkpoint.md). One rank
  /// per node checks it. Collective unless a function says otherwise, with equal arguments on every rank.
  /// Throws: CheckpointError, on all ranks: MU202, MU210 to MU216, MU313 to MU317 for files; MU131, MU208, MU209, MU240
  /// for state that does not fit. If loading fails, all objects in memory stay as they were.
  /// @{

  /// A function that gets the state to be written or loaded, and may change it. `folder`: the checkpoint's folder.
  using StateHook = std::function<void(State& state, const std::filesystem::path& folder)>;
  /// Writes everything that training depends on: models, optimizers, loss scales, schedulers, loaders, random
  /// generators, an unfinished accumulation window, gradients that no step has used, registered objects. A program that
  /// loads the checkpoint continues as if it had not been interrupted. `folder`: where to write; empty: a new numbered
  /// folder, as set in options.project. Returns the folder of the checkpoint. Asynchronous: returns once tensors are
  /// copied to host memory; the next save or wait_for_save() throws the errors of the save. Numbers are chosen when the
  /// files are written, so an asynchronous save returns the folder of all numbered checkpoints, and wait_for_save()
  /// returns the folder of the new one. See docs/decisions/0062-the-state-of-a-job.md.
  /// Throws: CheckpointError MU241 (an unknown scheduler); ConfigError MU244 (no folder).
  std::filesystem::path save_state(const std::filesystem::path& folder = {}, const SaveStateOptions& options = {});
  /// Loads the state into the program's objects, which must be prepared and registered in the order in which they were
  /// saved. The world size may differ: loaders continue at the sample where they stopped, and the log names what cannot
  /// be restored. epochs() continues at the epoch of the first loader. `folder` empty: the complete checkpoint with the
  /// highest number in the project's folder; the main rank chooses it for all ranks, and the log names skipped ones.
  /// Before anything is loaded, ranks check that they opened the same checkpoint.
  /// Throws: CheckpointError MU247 if ranks opened different saves; MU242 for a checkpoint inside an accumulation
  /// window that cannot be continued here; MU584 for gradients of other ranks; ConfigError MU244 if the folder does not
  /// exist or has no checkpoint.
  void load_state(const std::filesystem::path& folder = {}, const LoadStateOptions& options = {});
  /// Waits until an asynchronous save is on disk. Returns its folder; empty if no save was running.
  std::filesystem::path wait_for_save();

  /// Registers objects that have state_dict() and load_state_dict() (see Stateful), to be saved with the rest. If ranks
  /// hold different states, each rank gets back its own. Not collective.
  /// Requires: the objects outlive the runtime's saves.
  template <class... T>
    requires((Stateful<T> || FormerlyStateful<T>) && ...)
  void register_for_checkpointing(T&... objects) {
    (keep_object(SavedItem(std::string(), objects)), ...);
  }
  /// Registers a hook that is called before a checkpoint is written, with the state to be written (complete on rank 0
  /// only). It may add and change entries. An entry of "models" or "optimizers" that it empties is not saved. Not
  /// collective.
  RemovableHandle register_save_state_pre_hook(StateHook hook);
  /// Registers a hook that gets the state that was read, before it is loaded. Entries that it empties are not loaded.
  /// Not collective.
  RemovableHandle register_load_state_pre_hook(StateHook hook);

  /// Writes these items under their names, as Lightning Fabric does. `filter`: see SaveFilter.
  /// Throws: ConfigError MU246 for a filter whose name is not among the items.
  void save(const std::filesystem::path& folder, const std::vector<SavedItem>& items, const SaveFilter& filter = {});
  /// Loads items by name, and returns the remaining entries of the checkpoint.
  /// Throws: CheckpointError MU209 for a name that the checkpoint does not have, if strict; MU247 if ranks opened
  /// different saves.
  State load(const std::filesystem::path& folder, const std::vector<SavedItem>& items,
             const LoadStateOptions& options = {});
  /// Returns all entries of the checkpoint.
  State load(const std::filesystem::path& folder);
  /// Calls load_model(); Fabric's name for it.
  template <class M>
  void load_raw(const std::filesystem::path& path, const Model<M>& model, const LoadStateOptions& options = {}) const {
    load_model(model, path, {.strict = options.strict});
  }

  /// Loads bare weights into a model: the output of save_model(), a safetensors file, index or folder, a file of
  /// torch.save, torch::save or torch.jit.save, or a folder with pytorch_model.bin or its index. Like Python's
  /// load_state_dict, it converts values to the dtypes of the model. If a file holds one dictionary of tensors among
  /// other data, it loads that dictionary, and the log names what is left out, including objects of unknown classes.
  /// Optimizers, their states and averages of the model do not change.
  /// Returns the names that only the model or only the file has; none if strict. See LoadStateDictOptions.
  /// Throws, on all ranks, with the model unchanged: CheckpointError MU200, MU201, MU205, MU207, MU225, MU226 for the
  /// files; MU228, listing all, for names that only one of them has (if strict) and for values that do not fit; MU250
  /// if ranks read different weights.
  template <class M>
  IncompatibleKeys load_model(const Model<M>& model, const std::filesystem::path& path,
                              const LoadStateDictOptions& options = {}) const {
    return load_weights(model.ptr(), path, options);
  }
  /// Loads bare weights into a module, which need not be prepared.
  template <runtime::ModuleLike M>
  IncompatibleKeys load_model(M&& module, const std::filesystem::path& path,
                              const LoadStateDictOptions& options = {}) const {
    return load_weights(runtime::module_pointer(std::forward<M>(module)), path, options);
  }

  /// Writes the model's weights as safetensors into `folder`: one file, or several files and an index. Collective.
  template <class M>
  void save_model(const Model<M>& model, const std::filesystem::path& folder,
                  const SaveWeightsOptions& options = {}) const {
    write_model(*model.prepared(), folder, options);
  }
  /// Runs `f` while the module has its full parameters, for reading or writing, on all ranks or on the first. If
  /// nothing is sharded, it only calls `f`. Collective: if parameters are sharded; call it outside forward and
  /// backward.
  /// Throws: what `f` throws; as ShardedModel::summon_full_params().
  template <class M, std::invocable<> F>
  void summon_full_params(const Model<M>& model, F&& f, const FullParamsOptions& options = {}) const {
    with_full_params(*model.prepared(), std::forward<F>(f), options);
  }
  /// Returns the module behind the handle.
  template <class M>
  auto unwrap_model(const Model<M>& model) const {
    return model.ptr();
  }

  /// @}

 private:
  friend runtime::RuntimeState& runtime::state_of(const Runtime& runtime);

  runtime::TrialGroup trial_group();
  static void print_line(const std::string& line);
  /// Returns f as a function that runs where `is_chosen` is true of the cluster, and always in a world of one.
  template <class IsChosen, class F>
  auto on_ranks(IsChosen is_chosen, F f) const {
    return [state = state_, is_chosen, f = std::move(f)]<class... A>(A&&... arguments) mutable {
      const ClusterEnvironment& cluster = runtime::cluster_of(*state);
      const bool here = cluster.world_size == 1 || is_chosen(cluster);
      using R = std::invoke_result_t<F&, A...>;
      if constexpr (std::is_void_v<R>) {
        if (here) f(std::forward<A>(arguments)...);
      } else {
        return here ? std::optional<R>(f(std::forward<A>(arguments)...)) : std::nullopt;
      }
    };
  }
  std::shared_ptr<runtime::Accumulation> next_micro_batch();
  void run_joined(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                  const UnevenInputsOptions& options);
  int64_t convert_batch_norms(torch::nn::Module& module) const;
  /// Returns how many epochs a loaded checkpoint has completed, at most `count`. A later call does not return them
  /// again.
  int64_t first_epoch(int64_t count);
  void synchronize(const SyncedGenerators& kinds, std::vector<at::Generator> generators) const;
  void forget_freed();
  const std::vector<std::shared_ptr<FabricCallback>>& callbacks() const;
  void record_profile(const std::function<void()>& f, const ProfileOptions& options) const;
  void keep_object(SavedItem object);
  IncompatibleKeys load_weights(const std::shared_ptr<torch::nn::Module>& module, const std::filesystem::path& path,
                                const LoadStateDictOptions& options) const;
  static void with_full_params(const runtime::PreparedModel& model, const std::function<void()>& f,
                               const FullParamsOptions& options);
  void write_model(const runtime::PreparedModel& model, const std::filesystem::path& folder,
                   const SaveWeightsOptions& options) const;

  std::shared_ptr<runtime::RuntimeState> state_;
};

}  // namespace muster
