#include "comm/custom_backend.h"

#include <dlfcn.h>

#include <cstring>
#include <exception>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.h"
#include "comm/collectives.h"
#include "comm/error_text.h"
#include "comm/header.h"
#include "comm/object_file.h"
#include "comm/wait_policy.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr const char* kBackendObject = "muster_backend_object";

std::string device_name(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

[[noreturn]] void refuse_object(const std::string& path, const std::string& why) {
  throw ConfigError("MU562", formatted("the backend of a device in {} cannot be used: {}", path, why));
}

const BackendEntry& entry_of(const ObjectFile& opened) {
  const auto* object = static_cast<const BackendObject*>(::dlsym(opened.handle, kBackendObject));
  if (!object) refuse_object(opened.path, formatted("it does not define {}, see docs/howto/nccl.md", kBackendObject));
  if (const auto difference = difference_of_builds(object->built_with); !difference.empty())
    refuse_object(opened.path, "it " + difference);
  if (!object->entry.make || object->entry.device == c10::DeviceType::CPU)
    refuse_object(opened.path, "its entry has no factory, or is not for a device");
  return object->entry;
}

std::string absence(const std::string& name, const ObjectFile& opened) {
  const char* nccl =
      "it is built with Muster where LibTorch has CUDA and the headers of CUDA and NCCL are found (make cuda, or the "
      "CUDA toolkit); or ";
  return formatted("there is no {} (looked for {}): {}put its folder into {}",
                   name.find('/') == std::string::npos ? "libmuster_" + name + ".so" : "such file",
                   joined(opened.looked_at), name == "nccl" ? nccl : "", kObjectFolders);
}

FoundBackend from_object(const std::string& name, const ObjectFile& opened) {
  BackendEntry entry = entry_of(opened);
  entry.name = name;
  std::string note = "from " + opened.path;
  if (entry.note) note += "; " + entry.note();
  return {std::make_shared<const BackendEntry>(std::move(entry)), note};
}

c10::intrusive_ptr<c10d::Backend> required(c10::intrusive_ptr<c10d::Backend> made) {
  if (made) return made;
  throw ConfigError("MU560", "the factory returned none; let it return a c10d::Backend on every rank, or throw");
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return c10d::ReduceOp::MIN;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    case ReduceOp::product: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::sum:
    case ReduceOp::mean: break;  // started as a sum, which finish_mean() divides: not every backend has a mean
  }
  return c10d::ReduceOp::SUM;
}

c10::intrusive_ptr<c10d::Work> call_reduce(c10d::Backend& backend, const Operation& operation,
                                           std::vector<at::Tensor>& tensors) {
  c10d::ReduceOptions how;
  how.reduceOp = to_c10d(operation.reduce);
  how.rootRank = operation.root;
  // Backends may use the tensor as scratch memory on all ranks but the root.
  if (backend.getRank() != operation.root) tensors[0] = tensors[0].clone();
  return backend.reduce(tensors, how);
}

}  // namespace

FoundBackend find_device_backend(const DeviceBackend& wanted, c10::DeviceType device) {
  if (const auto& own = wanted.own())
    return own->device == device ? FoundBackend{own, "of the program"} : FoundBackend{nullptr, "it is for another one"};
  const auto& name = wanted.name();
  if (name == "none") return {nullptr, "device_backend is none"};
  const bool is_free = name == "auto" || name.empty();
  if (is_free && device != c10::DeviceType::CUDA) return {nullptr, "no device_backend is given"};
  const std::string object = is_free ? "nccl" : name;
  const auto opened = open_object(object);
  if (opened.is_refused) refuse_object(opened.path, opened.problem);
  if (is_free && !opened.handle) return {nullptr, absence("nccl", opened)};
  if (!opened.handle)
    throw ConfigError("MU558", formatted("device_backend is {}, but {}", name, absence(name, opened)));
  auto found = from_object(object, opened);
  if (found.entry->device != device)
    throw ConfigError("MU563", formatted("device_backend is {}, whose tensors are on {}, but this rank's are on {}: no "
                                         "device of that kind was found, or another one was chosen. Take "
                                         "device_backend auto or none, or a machine that has it",
                                         name, device_name(found.entry->device), device_name(device)));
  return found;
}

void check_device_backend(const BackendEntry& entry) {
  if (entry.device == c10::DeviceType::CPU)
    throw ConfigError("MU560",
                      "device_backend is a backend for tensors of a device, and this one is for the CPU; set "
                      "BackendEntry::device to the type of the device, or give it to connect() by name");
  if (!entry.make) throw ConfigError("MU560", "device_backend has no factory; set BackendEntry::make");
}

namespace {

using Clock = std::chrono::steady_clock;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr const char* kOutcome = "outcome";
constexpr const char* kAllHave = "all have it";

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

std::string made_key(int rank) { return formatted("made/{}", rank); }

std::string rank_of(const BackendAgreement& agreement) {
  return formatted("rank {} of {}", agreement.rank, agreement.group);
}

/// The outcome that was written first counts for all ranks.
std::string written(const BackendAgreement& agreement, const std::string& outcome) {
  return agreement.store->compareSet(kOutcome, "", outcome);
}

std::string failure_of(const BackendAgreement& agreement, const std::exception& error) {
  const auto [id, text] = split_message(short_error_text(error.what(), 500), "MU575");
  const auto failure = formatted("{}: {} could not make {}: {}", id, rank_of(agreement), agreement.what, text);
  try {
    return written(agreement, failure);
  } catch (const std::exception&) {
    return failure;  // the store is lost, and the others will find that out
  }
}

std::string time_out_of(const BackendAgreement& agreement) {
  std::vector<int> missing;
  for (int rank = 0; rank < agreement.size; ++rank)
    if (!agreement.store->check({made_key(rank)})) missing.push_back(rank);
  if (missing.empty()) return written(agreement, kAllHave);
  return written(
      agreement,
      formatted("MU575: {} waited {:.0f} s until all ranks had {}; not yet: {}. Do they wait in its factory, "
                "or have they ended?",
                rank_of(agreement), std::chrono::duration<double>(agreement.timeout).count(), agreement.what,
                joined(missing)));
}

std::string outcome_of_all(const BackendAgreement& agreement) {
  auto& store = *agreement.store;
  const auto until = Clock::now() + agreement.timeout;
  std::string reason;
  try {
    store.set(made_key(agreement.rank), "1");
    if (store.add("count", 1) == agreement.size) return written(agreement, kAllHave);
    store.wait({kOutcome}, agreement.timeout);
    return store.get_to_str(kOutcome);
  } catch (const Error&) {  // a wrong signature
    throw;
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  try {
    if (Clock::now() >= until) return time_out_of(agreement);
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  throw CommError("MU058", formatted("{} lost the store while it waited until all ranks had {}: {}", rank_of(agreement),
                                     agreement.what, short_error_text(reason)));
}

}  // namespace

BackendPtr make_on_all_ranks(const BackendAgreement& agreement, const std::function<BackendPtr()>& make) {
  BackendPtr made;
  std::string outcome;
  try {
    made = make();
  } catch (const std::exception& error) {
    outcome = failure_of(agreement, error);
  }
  if (outcome.empty()) outcome = outcome_of_all(agreement);
  if (outcome == kAllHave) return made;
  if (made) abort_backend(*made);  // its destructor may wait for ranks that have no backend
  const auto [id, text] = split_message(outcome, "MU575");
  throw CommError(id, text);
}

BackendPtr CustomBackend::make(const std::string& name, int rank, int size) const {
  return make_on_all_ranks(agreement(name, rank, size, "group " + name),
                           [&] { return required(entry.make(part_of(store, name), rank, size, options)); });
}

BackendPtr CustomBackend::split(const c10::intrusive_ptr<c10d::Backend>& parent, const std::vector<int>& ranks,
                                const std::string& name) const {
  const int rank = parent->getRank(), size = static_cast<int>(ranks.size()), own = rank_index(ranks, rank);
  const bool is_member = own < size;
  if (!entry.split) return is_member ? make(name, own, size) : nullptr;
  return make_on_all_ranks(agreement(name, rank, parent->getSize(), "the parent of group " + name), [&] {
    auto subgroup = entry.split(parent, part_of(store, name), ranks, options);
    return is_member ? required(std::move(subgroup)) : nullptr;
  });
}

BackendAgreement CustomBackend::agreement(const std::string& name, int rank, int size, std::string group) const {
  return {part_of(part_of(store, name), "agreement"),
          rank,
          size,
          options.rendezvous_timeout,
          std::move(group),
          formatted("the backend {} for {}", entry.name, device_name(entry.device))};
}

namespace {

/// Size in bytes of a header. If shapes may differ, ranks exchange headers like those of frames first.
constexpr int64_t kHeaderRow = sizeof(Header);

at::Tensor header_row(const Operation& operation, const at::Tensor& sent) {
  const Header header = make_header(operation, &sent, sent.nbytes());
  at::Tensor row = at::empty({kHeaderRow}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(row.mutable_data_ptr(), &header, sizeof header);
  return row;
}

/// The operations of a group through a backend for tensors in host memory, LibTorch's or another one.
class BackendCollectives final : public Collectives {
 public:
  BackendCollectives(const CustomBackend& custom, const std::string& group, int rank, int size)
      : custom_(custom), backend_(custom.make(group, rank, size)) {}

  int rank() const noexcept override { return backend_->getRank(); }
  int size() const noexcept override { return backend_->getSize(); }

  void run(Operation& operation, const std::string& group, TimePoint deadline) override {
    group_ = group;
    deadline_ = deadline;
    if (has_backend_call(operation.kind)) {
      std::vector<at::Tensor> kept;
      wait(call_backend(*backend_, operation, kept), is_point_to_point(operation.kind) ? operation.root : -1);
      return finish_mean(operation, rank(), size());
    }
    auto& results = operation.results;
    switch (operation.kind) {
      case OperationKind::barrier:
      case OperationKind::subgroup: return wait(backend_->barrier());
      case OperationKind::all_gatherv:
      case OperationKind::gather:
      case OperationKind::all_gather_bytes:
      case OperationKind::gather_bytes:
      case OperationKind::broadcast_bytes:
        results = uneven(operation, operation.in.defined() ? operation.in : at::empty({0}, at::kByte));
        return;
      case OperationKind::scatter: results.assign(1, scattered(operation)); return;
      case OperationKind::all_to_all:
        for (int r = 0; r < size(); ++r) {
          auto to_r = uneven(operation, operation.parts[r]);
          if (r == rank()) results = std::move(to_r);
        }
        return;
      default: return;
    }
  }

  void abort(const std::string&) noexcept override { abort_backend(*backend_); }

  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    return make_over_backend(custom_, name, rank_index(ranks, rank()), static_cast<int>(ranks.size()));
  }

 private:
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int peer = -1) const {
    if (!work) return;
    try {
      if (work->wait(left_until(deadline_))) return;
    } catch (const std::exception& failure) {
      const bool late = Clock::now() >= deadline_;
      throw TransportFailure{late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer,
                             failure.what()};
    }
    throw TransportFailure{TransportFailure::Kind::aborted, -1, "the backend ended the wait"};
  }

  at::Tensor all_gathered(const at::Tensor& in) const {
    at::Tensor out = at::empty({size() * in.numel()}, in.options());
    at::Tensor flat = in.view(-1);
    wait(backend_->_allgather_base(out, flat));
    return out;
  }

  /// The header that `from` announced, once it fits `mine`. Throws: CommError (MU050).
  Header announced(const Header& mine, const at::Tensor& row, int from) const {
    Frame frame{};
    std::memcpy(frame.bytes.data(), row.const_data_ptr(), sizeof(Header));
    check_headers(mine, rank(), frame, from, group_);
    const Header theirs = read_header(frame);
    if (!theirs.sends_tensor)
      throw CommError("MU050", formatted("rank {} sent rank {} nothing where a tensor is due in {} of group {}", from,
                                         rank(), name_of(mine.kind), group_));
    return theirs;
  }

  /// Exchanges headers first, then payloads padded to the largest: no backend takes uneven parts.
  std::vector<at::Tensor> uneven(const Operation& operation, const at::Tensor& in) const {
    const Header mine = make_header(operation, &in, in.nbytes());
    const at::Tensor rows = all_gathered(header_row(operation, in)).view({size(), kHeaderRow});
    std::vector<Header> headers;
    int64_t longest = 0;
    for (int r = 0; r < size(); ++r) {
      headers.push_back(announced(mine, rows[r], r));
      longest = std::max(longest, c10::multiply_integers(headers.back().sizes()));
    }
    at::Tensor padded = at::zeros({longest}, in.options());
    padded.narrow(0, 0, in.numel()).copy_(in.view(-1));
    at::Tensor gathered = longest ? all_gathered(padded) : padded;
    std::vector<at::Tensor> results;
    for (int r = 0; r < size(); ++r) {
      const auto shape = headers[r].sizes();
      results.push_back(gathered.narrow(0, longest * r, c10::multiply_integers(shape)).view(shape).clone());
    }
    return results;
  }

  at::Tensor scattered(const Operation& operation) const {
    const bool is_root = rank() == operation.root;
    std::vector<at::Tensor> rows;
    for (const auto& part : operation.parts) rows.push_back(header_row(operation, part));
    std::vector<at::Tensor> shapes{is_root ? at::stack(rows) : at::empty({size(), kHeaderRow}, at::kByte)};
    c10d::BroadcastOptions how;
    how.rootRank = operation.root;
    wait(backend_->broadcast(shapes, how), operation.root);
    for (int to = 0; is_root && to < size(); ++to) {
      std::vector<at::Tensor> part{operation.parts[to]};
      if (to != rank() && part[0].numel() > 0) wait(backend_->send(part, to, 0), to);
    }
    if (is_root) return operation.parts[rank()].clone();
    const Header own = announced(make_header(operation, nullptr, 0), shapes[0][rank()].contiguous(), operation.root);
    std::vector<at::Tensor> part{at::empty(own.sizes(), own.scalar_type())};
    if (part[0].numel() > 0) wait(backend_->recv(part, operation.root, 0), operation.root);
    return part[0];
  }

  const CustomBackend custom_;
  const BackendPtr backend_;
  std::string group_;
  TimePoint deadline_;
};

}  // namespace

std::unique_ptr<Collectives> make_over_backend(const CustomBackend& custom, const std::string& group, int rank,
                                               int size) {
  return std::make_unique<BackendCollectives>(custom, group, rank, size);
}

bool has_backend_call(OperationKind kind) { return has_one_shape(kind) && !has_list(kind); }

c10::intrusive_ptr<c10d::Work> call_backend(c10d::Backend& backend, const Operation& operation,
                                            std::vector<at::Tensor>& kept) {
  kept.assign(1, operation.out.defined() ? operation.out : operation.in);
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      c10d::AllreduceOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      return backend.allreduce(kept, how);
    }
    case OperationKind::reduce: return call_reduce(backend, operation, kept);
    case OperationKind::reduce_scatter: {
      c10d::ReduceScatterOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      at::Tensor in = operation.in.view(-1), out = operation.out.view(-1);
      // LibTorch 2.14 renamed this call and _allgather_base; either name reaches a backend that overrides one of the
      // two.
      return backend._reduce_scatter_base(out, in, how);
    }
    case OperationKind::all_gather: {
      at::Tensor in = operation.in.view(-1), out = operation.out.view(-1);
      return backend._allgather_base(out, in);
    }
    case OperationKind::broadcast: {
      c10d::BroadcastOptions how;
      how.rootRank = operation.root;
      return backend.broadcast(kept, how);
    }
    case OperationKind::send: return backend.send(kept, operation.root, 0);
    case OperationKind::recv: return backend.recv(kept, operation.root, 0);
    default: return nullptr;
  }
}

void abort_backend(c10d::Backend& backend) noexcept {
  try {
    backend.abort();
  } catch (const std::exception&) {}
}

void finish_mean(const Operation& operation, int rank, int size) {
  if (!reduces(operation.kind) || operation.reduce != ReduceOp::mean) return;
  if (operation.kind == OperationKind::reduce && rank != operation.root) return;
  at::Tensor(operation.out).div_(size);
}

}  // namespace muster::comm
