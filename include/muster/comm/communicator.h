#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::comm {

/// Prefixes of the library's own labels. Error messages choose their advice by them.
inline constexpr const char* kGradientsLabel = "gradients of ";
inline constexpr const char* kEvaluationLabel = "evaluation";

/// Who called an operation.
enum class Source : uint8_t { user, library };

/// What an operation is for. The label travels with the operation: ranks must agree on it, as on kind, shape and dtype,
/// and errors show it. Unlike an MPI tag, it does not select messages: a different label is a mismatch (MU050).
struct OperationLabel {
  int64_t gradient_step = -1;  ///< number of optimizer steps of the model so far, for what is computed from its
                               ///< gradients; else -1
  int64_t history_hash = 0;    ///< hash of what every rank must have done before, in order; 0: nothing
  std::string text{};          ///< what the values are; compared in full, shown in part
  int32_t tensor_index = 0;    ///< index of this tensor within a value
  int32_t tensor_count = 1;    ///< how many tensors the value has
  Source source = Source::user;

  bool operator==(const OperationLabel&) const = default;
};

enum class ReduceOp { sum, mean, min, max, product };

/// "sum", "mean" (also "avg"), "min", "max", "product" (also "prod").
/// Throws: ConfigError, listing the names, for any other word.
ReduceOp parse_reduce_op(std::string_view name);

/// Describes one operation, for tracing, statistics and profiling.
struct OperationEvent {
  std::string_view operation;  ///< "all_reduce", ...
  std::string_view group;      ///< the name of the group, "world" for the first one
  int64_t sequence = 0;        ///< counts the operations of the group from 0
  int64_t bytes = 0;           ///< payload of this rank
  at::ScalarType dtype = at::kByte;
  std::chrono::steady_clock::time_point start;  ///< when the caller started the operation
  std::chrono::steady_clock::time_point end;    ///< when the operation was done; on a device, when it was queued
  bool staged = false;                          ///< tensors of a device went through host memory, and the caller waited
};

/// A started operation. Copyable; a default-constructed one is done.
/// The tensors of the operation must stay untouched until wait() returned.
/// Thread safety: one thread at a time.
class Work {
 public:
  /// The state of a started operation.
  class State;
  /// An operation that is done.
  Work() = default;
  /// The handle that a start_* function returns.
  explicit Work(std::shared_ptr<State> state);
  /// Blocks until the operation is done. If a device backend runs it, the current stream waits instead of the thread.
  /// Throws: CommError on failure, mismatch or time-out.
  void wait();
  /// Whether wait() would return at once.
  bool is_completed() const;

 private:
  std::shared_ptr<State> state_;
};

class Group;

/// A group of ranks and the operations on it: a cheap handle to shared state.
/// Every operation takes float64/32/16, bfloat16, int64/32/16/8, uint8 and bool, empty and non-contiguous tensors; the
/// start_* forms need contiguous tensors, which they fill in place.
/// Tensors may be in host memory or on the accelerator; all tensors of one operation are on one device. In a world of
/// one, and with a backend for this device, the current stream orders operations on its tensors, as for any operator.
/// All other backends stage them through pinned host memory, and the caller waits. scatter() returns host memory on
/// ranks other than the root.
/// Ranks that disagree in operation, order, shape, dtype or label all get a CommError that names both sides, before a
/// wrong value can be used. Every wait ends within the time-out of the group. Every rank adds in rank order,
/// so all ranks and all runs get identical bits, except that the payload of a NaN may depend on where the tensors are.
/// Thread safety: operations may be started from one thread at a time; they run in the order in which they were
/// started.
class Communicator {
 public:
  /// A world of one: every operation is the identity.
  Communicator();
  /// A handle to an existing group.
  explicit Communicator(std::shared_ptr<Group> group);

  /// This rank's number in the group, from 0.
  int rank() const noexcept;
  /// How many ranks the group has.
  int size() const noexcept;
  /// "gloo", "shm", "hierarchical", "mpi", "threads", "fake", the name of a custom transport, or
  /// "none" for a world of one.
  std::string_view backend() const noexcept;
  std::string_view backend_reason() const noexcept;  ///< why this backend was chosen; empty if the options name it
  /// The group's name in messages; the group of all ranks is "world".
  const std::string& name() const noexcept;
  /// How long an operation may wait for other ranks.
  std::chrono::milliseconds timeout() const noexcept;

  /// The label of this handle's operations, which tells what they are for. By default: called by the user.
  const OperationLabel& label() const noexcept { return label_; }
  /// A handle to this group whose operations carry `label`.
  Communicator with_label(OperationLabel label) const;
  /// A handle to this group for the library's own messages; `label` tells what they are for. They never match
  /// collectives that the program calls.
  Communicator internal(std::string label, int64_t gradient_step = -1) const;

  // Collective: all functions from here to duplicate(), by every rank of the group, in the same order.

  /// Reduces the tensors of all ranks, in place. Throws: ConfigError for the mean of integers or bool.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  /// Starts all_reduce() and returns.
  [[nodiscard]] Work start_all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;

  /// Stacks the tensors of all ranks, whose shapes are equal, along a new first dimension of the size of the group.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  /// Returns one tensor per rank, in rank order; shapes may differ in every dimension.
  std::vector<at::Tensor> all_gatherv(const at::Tensor& tensor) const;
  /// Gathers `in` of all ranks into `out`, which has size() times as many elements; rank r's part is its r-th piece.
  /// `in` may be this rank's piece of `out`. Throws: ConfigError (MU060) if it overlaps `out` elsewhere.
  void all_gather_into(const at::Tensor& out, const at::Tensor& in) const;
  /// Starts all_gather_into() and returns.
  [[nodiscard]] Work start_all_gather_into(const at::Tensor& out, const at::Tensor& in) const;

  /// Reduces the r-th pieces of all ranks' `in` into `out` on rank r; `in` has size() times as many elements as `out`.
  /// `out` may be this rank's piece of `in`. Throws: ConfigError (MU060) if it overlaps `in` elsewhere.
  void reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op = ReduceOp::sum) const;
  /// Starts reduce_scatter() and returns.
  [[nodiscard]] Work start_reduce_scatter(const at::Tensor& out, const at::Tensor& in,
                                          ReduceOp op = ReduceOp::sum) const;

  /// Gives all ranks the values of rank `root`, in place; shapes are equal.
  void broadcast(const at::Tensor& tensor, int root = 0) const;
  /// Starts broadcast() and returns.
  [[nodiscard]] Work start_broadcast(const at::Tensor& tensor, int root = 0) const;

  /// Reduces the tensors of all ranks, in place on `root`; other ranks' tensors keep their values.
  void reduce(const at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum) const;
  /// Returns one tensor per rank on `root`, an empty list elsewhere; shapes may differ.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root = 0) const;
  /// Returns this rank's part of `parts`, which is read on `root` only and has one tensor per rank; shapes may differ.
  at::Tensor scatter(const std::vector<at::Tensor>& parts, int root = 0) const;
  /// Sends parts[r] to rank r; shapes may differ. Returns at [r] what rank r sent.
  std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& parts) const;

  /// Waits until every rank has called it.
  void barrier() const;
  /// Returns the bytes of rank `root`; those of other ranks are not read.
  std::string broadcast_bytes(std::string bytes, int root = 0) const;
  /// Returns the bytes of all ranks, in rank order; lengths may differ.
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;
  /// Returns the bytes of all ranks on `root`, in rank order; nothing elsewhere.
  std::vector<std::string> gather_bytes(const std::string& bytes, int root = 0) const;

  /// A group of some of these ranks (ranks of this group, ascending). Collective: every rank of this group, member or
  /// not; a rank that is not a member gets a world of one.
  Communicator subgroup(const std::vector<int>& ranks) const;
  /// A group of the same ranks with a separate sequence of operations.
  Communicator duplicate() const;

  // Not collective: only the two ranks concerned.

  /// Sends the tensor to rank `to`, whose tensor must have the same shape and dtype.
  void send(const at::Tensor& tensor, int to) const;
  /// Fills the tensor with what rank `from` sends.
  void recv(const at::Tensor& tensor, int from) const;

  /// Ends every running and later operation of the group, on all ranks, with this cause. Never blocks.
  void abort(const std::string& cause) const;

  /// Called after an operation, on the thread that ran it. Thread safety: left to the observer.
  using Observer = std::function<void(const OperationEvent&)>;
  /// Adds an observer that is called for every later operation of the group.
  void observe(Observer observer) const;

  /// The group behind the handle, for Muster's own functions.
  const std::shared_ptr<Group>& group() const noexcept { return group_; }

 private:
  Communicator(std::shared_ptr<Group> group, OperationLabel label);

  std::shared_ptr<Group> group_;
  OperationLabel label_;
};

}  // namespace muster::comm
