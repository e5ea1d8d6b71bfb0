#pragma once

#include "comm/shared_tensor.h"
#include "device/order.h"
#include "hook/watched_storage.h"
#include "muster/parallel/sharded_options.h"
#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/one_copy.h"
#include "parallel/sharded/shard_layout.h"
#include "parallel/sharded/sharded_settings.h"
#include "parallel/sharded/units.h"

namespace muster::parallel {

/// The location of the full parameters of a unit.
enum class UnitState : uint8_t {
  sharded,     ///< nowhere: each rank has only its shard
  unsharding,  ///< being gathered
  unsharded,   ///< in this rank's memory
};

enum class UnitEvent : uint8_t {
  prefetch,  ///< the parameters will be needed soon
  access,    ///< an operator needs them now
  reshard,   ///< the parameters are not needed for now
  update,    ///< the values of the ranks' shards have changed
};

/// The actions that an event requires, in this order.
struct UnitTransition {
  bool wait_first = false;  ///< wait for the running gather first
  bool detach = false;      ///< leave the running gather alone without waiting for it
  bool free = false;        ///< free the memory of the full parameters
  bool start = false;       ///< start a gather
  bool wait = false;        ///< wait for the gather that was started
  UnitState next = UnitState::sharded;
  friend bool operator==(const UnitTransition&, const UnitTransition&) = default;
};

/// The state machine of a unit. A unit that stays unsharded always has memory for its full parameters, and is gathered
/// again when shards have changed.
UnitTransition transition(bool stays_unsharded, UnitState state, UnitEvent event);

/// The dtype in which the full parameters of this unit are used.
at::ScalarType dtype_of_use(const UnitPlan& plan, const ShardSettings& settings);

/// The values of one unit: this rank's shard of them, and the full parameters, with the memory that the module's
/// parameters view. On a device full parameters are gathered on the model's own stream. Streams that use them wait for
/// it, and their memory is reused only after these streams. Thread safety: the caller's.
class UnitValues {
 public:
  /// Takes the values of the main rank. Operators that use views of the memory are reported with `owner_id`. If ranks
  /// share one copy, it may be read once all have passed a barrier after this.
  /// Requires: all arguments but the last two, and the copy, which may be nullptr, outlive this object. Collective.
  UnitValues(const UnitPlan& plan, const ShardLayout& layout, const ShardGroups& groups, const ShardSettings& settings,
             const ShardStreams& streams, BufferPool& buffers, OneCopy* one_copy,
             const std::weak_ptr<hook::StorageWatcher>& watcher, int64_t owner_id);
  UnitValues(const UnitValues&) = delete;

  /// The dtype of the full parameters.
  at::ScalarType used_dtype() const noexcept { return used_dtype_; }
  /// This rank's shard, 1-D, in the dtype that is updated.
  const at::Tensor& shard() const noexcept { return shard_; }
  /// A view of the full parameter i, whether it is in memory or not.
  at::Tensor view(size_t i) const;
  /// Whether the tensor is a view of the full parameters.
  bool holds(const at::Tensor& tensor) const noexcept { return memory_.holds(tensor); }

  bool stays_unsharded() const noexcept { return settings_.keeps_params_unsharded(); }
  UnitState state() const noexcept { return state_; }
  /// Sets the purpose shown in the labels of later gathers. Requires: text that stays valid.
  void label_gathers(const char* purpose) noexcept { purpose_ = purpose; }
  /// Handles the event. Returns whether it starts a gather; it is collective then.
  bool handle(UnitEvent event);
  /// Records that the current stream uses the full parameters, and makes it wait for them once. Requires: unsharded.
  void use_on_current_stream() {
    if (gathered_ && uses_.add(streams_.accelerator)) wait_for_gathered();
  }
  /// On: after the full parameters are freed, each rank of the post-forward mesh (`reshard_after_forward` is a number)
  /// keeps a post-forward shard, and the next gather collects these shards.
  void keep_post_forward_shard(bool on) noexcept {
    keeps_post_forward_shard_ = on && groups_.post_forward.size() > 1 && !has_one_copy();
  }
  bool has_post_forward_shard() const noexcept { return post_forward_shard_.defined(); }
  /// Frees the post-forward shard. Must be called where the next gather may belong to another pass.
  void free_post_forward_shard();
  /// Returns the memory that the unit does not keep permanently. Requires: nobody uses the unit any more.
  void release_memory();

  /// Whether the ranks of the shards share one copy of the full parameters.
  bool has_one_copy() const noexcept { return shared_copy_.whole.defined(); }
  /// Writes the new values of this rank's shard into the shared copy. Requires: OneCopy::is_updating().
  void write_to_shared_copy();
  /// Makes the values unreachable, because the shared copy is torn.
  void forget();
  /// A digest of the uses of the model's shared copy; 0 if it has none.
  int64_t history_hash() const noexcept { return one_copy_ ? one_copy_->history_hash() : 0; }

  /// Bytes of full parameters in this rank's own memory that are in use now.
  int64_t live_bytes() const {
    return has_one_copy() || (state_ == UnitState::sharded && !stays_unsharded()) ? 0 : full_bytes();
  }
  int64_t full_bytes() const { return layout_.total() * static_cast<int64_t>(c10::elementSize(used_dtype_)); }
  /// Bytes that are allocated permanently.
  int64_t held_bytes() const;

  /// The full parameters, in memory separate from the unit's; undefined on ranks other than rank 0 of the shards if
  /// `main_only`. Collective.
  std::vector<at::Tensor> full_params(bool main_only) const;
  /// Gathers the full parameters, in the dtype of use, into memory that can be written; if `main_only`, only on the
  /// first rank of the shards. Collective. end_full_params() must be called afterwards. Without `writes` the memory may
  /// be that of the shared copy, which is read-only.
  void begin_full_params(bool main_only, bool writes);
  /// Ends begin_full_params(). With `write_back`, this rank's shard, or what the first rank has, becomes the new value.
  /// Collective, within an update of the shared copy.
  void end_full_params(const FullParamsOptions& how, bool write_back);
  bool full_params_open() const noexcept { return open_; }

 private:
  void share(const at::Tensor& whole);
  void begin_on_one_copy(bool main_only, bool writes);
  void fill_memory();
  void release(const at::Tensor& unsharded);
  void start_unshard();
  void finish_unshard();
  void drop_unshard();
  void wait_for_unshard();
  void wait_for_gathered();
  void reshard();
  at::Tensor post_forward_shard(const at::Tensor& whole) const;
  at::Tensor local_shard(const at::Tensor& whole) const;
  void write_full_params(bool main_only);
  void keep_written(const at::Tensor& written);
  std::string label(const char* purpose) const { return std::string(purpose) + ", unit '" + plan_.name + "'"; }

  const UnitPlan& plan_;
  const ShardLayout& layout_;
  const ShardGroups& groups_;
  const ShardSettings& settings_;
  const ShardStreams& streams_;
  BufferPool& buffers_;
  OneCopy* one_copy_;
  const at::ScalarType used_dtype_;
  hook::WatchedStorage memory_;
  at::Tensor shard_;
  comm::SharedTensor shared_copy_;  // the shared copy, if ranks have one
  at::Tensor unsharded_;            // memory behind memory_, or memory that is gathered into
  at::Tensor post_forward_shard_;   // this rank's post-forward shard of full parameters that were freed
  comm::Work work_;
  device::Event gathered_;   // end of the gather into unsharded_
  device::StreamUses uses_;  // streams that use unsharded_
  UnitState state_ = UnitState::sharded;
  const char* purpose_ = "new values";
  bool keeps_post_forward_shard_ = false;
  bool open_ = false;
  at::Tensor before_writes_;  // the shard before summon_full_params overwrote it
};

}  // namespace muster::parallel
