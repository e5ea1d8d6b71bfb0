#include "muster/sim/backend.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "base/mutex.h"
#include "muster/base/error.h"
#include "sim/channel.h"
#include "sim/machine.h"
#include "sim/memory.h"
#include "sim/tensors.h"

namespace muster::sim {

/// While an object of this class exists, commands of this process also run when no host thread waits for the machine,
/// because other processes may wait for them.
class Progress {
 public:
  /// The object of this process; it exists as long as somebody holds it.
  static std::shared_ptr<Progress> get();
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void run();

  base::Mutex mutex_;
  base::Condition changed_;
  bool stops_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

std::shared_ptr<Progress> Progress::get() {
  static base::Mutex mutex;
  static std::weak_ptr<Progress> current MUSTER_GUARDED_BY(mutex);
  const base::Lock lock(mutex);
  auto progress = current.lock();
  if (!progress) current = progress = std::make_shared<Progress>();
  return progress;
}

Progress::Progress() : thread_([this] { run(); }) {}

Progress::~Progress() {
  {
    const base::Lock lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Progress::run() {
  uint64_t seen = 0;
  base::Lock lock(mutex_);
  const auto stops = [this]() MUSTER_REQUIRES(mutex_) { return stops_; };
  while (!changed_.wait_for(lock, std::chrono::microseconds(200), stops)) {
    lock.unlock();
    Machine::get().run_if_idle(seen);
    lock.lock();
  }
}

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using RedOpType = c10d::ReduceOp::RedOpType;

/// A started operation. It keeps the tensors until the streams' order does.
class QueuedWork final : public c10d::Work {
 public:
  QueuedWork(int rank, c10d::OpType type, Mark end, int device, std::shared_ptr<Tensors> used, Tensors results)
      : Work(rank, type), end_(std::move(end)), device_(device), used_(std::move(used)), results_(std::move(results)) {}

  bool isCompleted() override { return Machine::get().query(end_); }
  bool isSuccess() const override { return true; }
  Tensors result() override { return results_; }
  void synchronize() override {
    Machine::get().block(end_, current_stream(device_));
    const auto lock = Machine::get().lock();
    used_->clear();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (retrieveOpType() == c10d::OpType::BARRIER) Machine::get().synchronize(end_, "barrier", timeout);
    else if (timeout != kNoTimeout) Machine::get().synchronize(end_, "work with a time-out", timeout);
    return true;
  }

 private:
  Mark end_;
  int device_;
  std::shared_ptr<Tensors> used_;
  Tensors results_;
};

void add(const at::Tensor& sum, const at::Tensor& part, RedOpType op) {
  switch (op) {
    case RedOpType::MIN: at::minimum_out(const_cast<at::Tensor&>(sum), sum, part); break;
    case RedOpType::MAX: at::maximum_out(const_cast<at::Tensor&>(sum), sum, part); break;
    case RedOpType::PRODUCT: sum.mul_(part); break;
    default: sum.add_(part);
  }
}

at::Tensor reduced(const Tensors& parts, RedOpType op) {
  const bool in_float = at::isReducedFloatingType(parts[0].scalar_type());
  auto sum = in_float ? parts[0].to(at::kFloat) : parts[0].clone();
  for (size_t r = 1; r < parts.size(); ++r) add(sum, parts[r].to(sum.scalar_type()), op);
  if (op == RedOpType::AVG) sum.div_(static_cast<int64_t>(parts.size()));
  return sum;
}

at::Tensor row(const at::Tensor& all, size_t r, size_t count) {
  const auto length = all.numel() / static_cast<int64_t>(count);
  return all.view(-1).narrow(0, length * static_cast<int64_t>(r), length);
}

std::string described(const at::Tensor& tensor) {
  return " of " + std::to_string(tensor.numel()) + " " + c10::toString(tensor.scalar_type());
}

class QueuedBackend final : public c10d::Backend {
 public:
  QueuedBackend(std::shared_ptr<Segment> segment, int rank, int size, std::vector<c10::ScalarType> refused)
      : Backend(rank, size), segment_(std::move(segment)), refused_(std::move(refused)) {
    if (segment_->has_other_processes()) progress_ = Progress::get();
  }
  ~QueuedBackend() override { leave(); }

  const std::string getBackendName() const override { return "sim"; }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                        std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions&) override;
  WorkPtr send(Tensors& tensors, int to, int) override { return pass(c10d::OpType::SEND, tensors, getRank(), to); }
  WorkPtr recv(Tensors& tensors, int from, int) override { return pass(c10d::OpType::RECV, tensors, from, getRank()); }
  WorkPtr barrier(const c10d::BarrierOptions&) override;
  void abort() override { segment_->abort(); }

 private:
  static RedOpType type_of(const c10d::ReduceOp& op) { return static_cast<RedOpType>(op); }
  static at::Tensor& only(Tensors& tensors) {
    TORCH_CHECK(tensors.size() == 1, "the simulated accelerator's collectives take one tensor per call");
    return tensors[0];
  }
  size_t own() const { return static_cast<size_t>(getRank()); }
  Channel& group_channel(int device);
  Channel& pair_channel(int device, int from, int to);
  Channel& channel(int device, size_t first, std::vector<int> ranks, size_t own);
  WorkPtr pass(c10d::OpType type, Tensors& tensors, int from, int to);
  WorkPtr start(c10d::OpType type, const at::Tensor& in, const at::Tensor& out, const std::string& details,
                Combine combine);
  WorkPtr queue(c10d::OpType type, Channel& channel, const at::Tensor& in, const at::Tensor& out,
                const std::string& what, Combine combine);
  void leave() noexcept;

  std::shared_ptr<Segment> segment_;
  std::vector<c10::ScalarType> refused_;
  std::shared_ptr<Progress> progress_;
  std::map<std::pair<int, size_t>, std::shared_ptr<Channel>> channels_;  ///< channels by device and first slot
  Mark last_;
};

Channel& QueuedBackend::channel(int device, size_t first, std::vector<int> ranks, size_t own) {
  const auto lock = Machine::get().lock();
  auto& place = channels_[{device, first}];
  if (!place)
    place =
        std::make_shared<Channel>(segment_, first, std::move(ranks), own, Machine::get().communicator_stream(device));
  return *place;
}

Channel& QueuedBackend::group_channel(int device) {
  std::vector<int> ranks(static_cast<size_t>(getSize()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return channel(device, 0, std::move(ranks), own());
}

Channel& QueuedBackend::pair_channel(int device, int from, int to) {
  return channel(device, segment_->first_of_pair(from, to), {from, to}, getRank() == from ? 0 : 1);
}

WorkPtr QueuedBackend::queue(c10d::OpType type, Channel& channel, const at::Tensor& in, const at::Tensor& out,
                             const std::string& what, Combine combine) {
  TORCH_CHECK(!in.defined() || std::find(refused_.begin(), refused_.end(), in.scalar_type()) == refused_.end(),
              "this backend takes no tensors of ", in.scalar_type());
  auto& machine = Machine::get();
  const auto lock = machine.lock();
  const int device = channel.stream().device_index();
  machine.block(machine.record(std::make_shared<Event>(), current_stream(device)), channel.stream());
  channel.enqueue(c10d::opTypeToString(type), what, in, out, std::move(combine));
  const auto end = machine.record(std::make_shared<Event>(), channel.stream());
  // Keeps memory until here if nobody waits for the work.
  auto used = std::make_shared<Tensors>(Tensors{in, out});
  machine.enqueue(channel.stream(), {"end of a collective", [used, stream = channel.stream()] {
                                       for (const auto& tensor : *used)
                                         if (tensor.defined())
                                           device_allocator().recordStream(tensor.storage().data_ptr(), stream);
                                       used->clear();
                                     }});
  last_ = end;
  return c10::make_intrusive<QueuedWork>(getRank(), type, end, device, std::move(used), Tensors{out});
}

WorkPtr QueuedBackend::start(c10d::OpType type, const at::Tensor& in, const at::Tensor& out, const std::string& details,
                             Combine combine) {
  TORCH_CHECK(is_on_device(in) && out.device() == in.device(),
              "collectives of the simulated accelerator take tensors of one device");
  TORCH_CHECK(in.is_contiguous() && out.is_contiguous(), "collectives take contiguous tensors");
  return queue(type, group_channel(in.device().index()), in.detach(), out.detach(),
               c10d::opTypeToString(type) + " " + details + described(in), std::move(combine));
}

WorkPtr QueuedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto op = type_of(options.reduceOp);
  return start(c10d::OpType::ALLREDUCE, only(tensors), only(tensors), "op " + std::to_string(op),
               [op](const Tensors& parts, const at::Tensor& out) { out.view(-1).copy_(reduced(parts, op)); });
}

WorkPtr QueuedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto op = type_of(options.reduceOp);
  const bool is_root = options.rootRank == getRank();
  return start(c10d::OpType::REDUCE, only(tensors), only(tensors),
               "op " + std::to_string(op) + " to " + std::to_string(options.rootRank),
               [op, is_root](const Tensors& parts, const at::Tensor& out) {
                 if (is_root) out.view(-1).copy_(reduced(parts, op));
               });
}

WorkPtr QueuedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto root = static_cast<size_t>(options.rootRank);
  return start(c10d::OpType::BROADCAST, only(tensors), only(tensors), "from " + std::to_string(root),
               [root, own = own()](const Tensors& parts, const at::Tensor& out) {
                 if (root != own) out.view(-1).copy_(parts[root]);
               });
}

WorkPtr QueuedBackend::_allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) {
  TORCH_CHECK(out.numel() == in.numel() * getSize(), "all-gather: the output has another size than all inputs");
  return start(c10d::OpType::_ALLGATHER_BASE, in, out, "", [](const Tensors& parts, const at::Tensor& all) {
    for (size_t r = 0; r < parts.size(); ++r) row(all, r, parts.size()).copy_(parts[r]);
  });
}

WorkPtr QueuedBackend::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                            const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(in.numel() == out.numel() * getSize(), "reduce-scatter: the input has another size than all outputs");
  const auto op = type_of(options.reduceOp);
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, in, out, "op " + std::to_string(op),
               [op, own = own()](const Tensors& parts, const at::Tensor& part) {
                 Tensors rows;
                 for (const auto& each : parts) rows.push_back(row(each, own, parts.size()));
                 part.view(-1).copy_(reduced(rows, op));
               });
}

WorkPtr QueuedBackend::alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                                     std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions&) {
  TORCH_CHECK(out_sizes.empty() && in_sizes.empty(),
              "all-to-all of the simulated accelerator takes parts of equal size");
  return start(c10d::OpType::ALLTOALL_BASE, in, out, "", [own = own()](const Tensors& parts, const at::Tensor& all) {
    for (size_t r = 0; r < parts.size(); ++r) row(all, r, parts.size()).copy_(row(parts[r], own, parts.size()));
  });
}

WorkPtr QueuedBackend::pass(c10d::OpType type, Tensors& tensors, int from, int to) {
  const auto& tensor = only(tensors);
  TORCH_CHECK(is_on_device(tensor) && tensor.is_contiguous(), "send and recv take contiguous tensors of the device");
  return queue(type, pair_channel(tensor.device().index(), from, to), tensor, tensor, "a message" + described(tensor),
               [receives = getRank() == to](const Tensors& parts, const at::Tensor& out) {
                 if (receives) out.view(-1).copy_(parts[0]);
               });
}

WorkPtr QueuedBackend::barrier(const c10d::BarrierOptions&) {
  return queue(c10d::OpType::BARRIER, group_channel(current_device()), {}, {}, "BARRIER", {});
}

/// Runs what is queued: if ranks are processes, no other thread would run what this one still owes the others.
void QueuedBackend::leave() noexcept {
  try {
    if (progress_ && last_.event && segment_->end_of(getRank()).empty()) Machine::get().synchronize(last_, {});
  } catch (const std::exception&) {  // the other ranks see the same error
  }
  if (channels_.empty()) segment_->leave();
  else channels_.begin()->second->enqueue_leave();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               const BackendOptions& options) {
  if (Machine::get().options().devices == 0 || !c10::is_privateuse1_backend_registered())
    throw ConfigError("MU550", "muster::sim::make_backend was called before muster::sim::install");
  auto segment = std::make_shared<Segment>(store, rank, size, options);
  return c10::make_intrusive<QueuedBackend>(std::move(segment), rank, size, options.refused);
}

}  // namespace muster::sim
