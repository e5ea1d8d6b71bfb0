#pragma once

#include "muster/base/format.h"
#include "muster/checkpoint/options.h"
#include "muster/data/loader.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"
#include "muster/runtime/options.h"
#include "muster/runtime/prepare.h"
#include "muster/runtime/values.h"

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace muster {

/// How backward runs.
struct BackwardOptions {
  /// Keep the graph for another backward.
  bool retain_graph = false;
};

/// How gradients are clipped by norm.
struct ClipOptions {
  /// A norm that is infinite or not a number throws (MU175) instead of spoiling the parameters.
  bool error_if_nonfinite = false;
  double norm_type = 2.0;
};

/// How Fabric clips: exactly one of the two bounds.
struct ClipGradientsOptions {
  std::optional<double> clip_val = {};
  bool error_if_nonfinite = true;
  std::optional<double> max_norm = {};
  double norm_type = 2.0;
};

/// One program on one rank: its group, devices, strategy, precision, and everything it prepared.
/// The doors Accelerator and Fabric show parts of it under the names their users know and add no logic.
/// Thread safety: one thread at a time.
class Runtime {
 public:
  explicit Runtime(const RuntimeOptions& options);
  ~Runtime();
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;

  /// Brings up the other local ranks where nobody did (what stands before it runs in each of them) and joins the group.
  /// A second call does nothing. Collective.
  void launch();

  int rank() const;
  int local_rank() const;
  int node_rank() const;
  int world_size() const;
  bool is_main() const { return rank() == 0; }
  bool is_local_main() const { return local_rank() == 0; }
  bool is_last() const { return rank() == world_size() - 1; }
  c10::Device device() const;
  /// The group of all ranks.
  const dist::Communicator& group() const;

  /// Takes modules, optimizers, LibTorch's schedulers and muster::DataLoaders, in any order and number, and returns their
  /// handles in the same order; one argument comes back bare. Temporaries are owned, named objects borrowed.
  /// Collective: with the same arguments on every rank.
  template <class... T>
  auto prepare(T&&... objects) {
    static_assert(sizeof...(T) > 0, "prepare takes at least one object");
    return runtime::prepare(*parts_, std::forward<T>(objects)...);
  }

  /// Backward of the loss, with gradients communicated as the strategy does. Collective: unless inside no_sync.
  void backward(const at::Tensor& loss, BackwardOptions options = {});

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
  /// Autocast as the precision says, for code outside a model's forward, such as the loss.
  [[nodiscard]] precision::AutocastScope autocast() const;

  /// Scales the model's gradients so that their norm is at most max_norm; returns the norm before that.
  /// Collective: where the strategy shards gradients.
  template <class M>
  double clip_grad_norm_(const Model<M>& model, double max_norm, ClipOptions options = {}) {
    return clip_grad_norm_(model.parameters(), max_norm, options);
  }
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options = {});
  /// Clamps every gradient element to [-clip_value, clip_value].
  template <class M>
  void clip_grad_value_(const Model<M>& model, double clip_value) { clip_grad_value_(model.parameters(), clip_value); }
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// Clips what the optimizer updates, by norm (returned) or by value (returns 0).
  double clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options);

  // Collective: the values below, on every rank, with values of one structure. Any nesting of tensors works.

  /// All ranks' tensors, joined along the first dimension in rank order; a tensor without dimensions counts as one of [1].
  template <class... T>
  auto gather(const T&... values) const { return runtime::gather(group(), values...); }
  /// All ranks' tensors stacked in a new first dimension, of the size of the world.
  template <class T>
  T all_gather(const T& value) const { return runtime::all_gather(group(), value); }
  /// The "sum", "mean", "min", "max" or "product" over ranks, as a new value.
  template <class T>
  T reduce(const T& value, std::string_view op = "sum") const { return runtime::reduce(group(), value, op); }
  /// The value of rank `source`.
  template <class T>
  T broadcast(const T& value, int source = 0) const { return runtime::broadcast(group(), value, source); }
  /// Tensors filled up with `value` so that dimension `dim` is as long as on the rank where it is longest.
  template <class T>
  T pad_across_processes(const T& value, runtime::PadOptions options = {}) const {
    return runtime::pad_across_processes(group(), value, options);
  }
  void barrier() const;

  /// Runs `f` on the main rank first, then on the others; an exception on the main rank reaches all. Collective.
  template <class F>
  auto main_process_first(F&& f) const { return runtime::first_here(group(), is_main(), std::forward<F>(f)); }

  /// A line on the main rank only: print("epoch {}: {:.2f}%", epoch, 100.0 * right / seen).
  template <class... A>
  void print(std::string_view text, const A&... values) const {
    if (is_main()) print_line(sizeof...(A) == 0 ? std::string(text) : formatted(text, values...));
  }

  /// 0, 1, ... count - 1.
  static auto epochs(int64_t count) { return std::views::iota(int64_t{0}, count); }
  /// Seeds all generators, alike on every rank, or with the rank added. Loaders prepared later shuffle by it.
  void set_seed(uint64_t seed, bool per_rank = false);

  /// Writes the model's weights as safetensors into `folder`: one file, or several and an index. Collective.
  template <class M>
  void save_model(const Model<M>& model, const std::filesystem::path& folder, const SaveWeightsOptions& options = {}) const {
    write_model(*model.prepared(), folder, options);
  }
  template <class M>
  std::shared_ptr<M> unwrap_model(const Model<M>& model) const { return model.ptr(); }

  /// Every decision taken and its reason, one line each.
  std::string plan() const;

 private:
  static void print_line(const std::string& line);
  void write_model(const runtime::PreparedModel& model, const std::filesystem::path& folder, const SaveWeightsOptions& options) const;

  std::shared_ptr<runtime::Parts> parts_;
};

}  // namespace muster
