#include "checkpoint/checkpoint_writer.h"

#include <exception>
#include <random>
#include <thread>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/state_json.h"
#include "comm/agreement.h"
#include "format/atomic_file.h"
#include "format/checksum.h"
#include "format/json.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/options.h"
#include "muster/comm/communicator.h"
#include "save_target.h"

namespace muster::checkpoint {
namespace {

/// Alignment in bytes, so that tensors in a mapped file are aligned for vectors and pages.
constexpr std::uint64_t kHeadAlignment = 64;

void add_shards(RankSavePlan& result, const std::vector<TensorShard>& shards, int rank, const std::string& folder) {
  for (const TensorShard& shard : shards) {
    const std::string name = "slice/" + escaped(shard.name, true) + "@" + std::to_string(shard.begin);
    const format::TensorSpec spec = spec_of(shard.name, shard.local, folder);
    auto& entry = result.shards.emplace_back(format::ShardEntry{.name = shard.name,
                                                                .shape = shard.shape,
                                                                .begin = shard.begin,
                                                                .tensor = {},
                                                                .dtype = std::string(format::name_of(spec.type)),
                                                                .count = shard.local.numel(),
                                                                .rank = rank});
    const bool is_whole_empty = std::find(shard.shape.begin(), shard.shape.end(), 0) != shard.shape.end();
    if (shard.local.numel() == 0 && !is_whole_empty) continue;
    if (spec.type == format::ElementType::f4)
      throw CheckpointError("MU203", folder + " was not written: tensor " + in_quotes(shard.name) +
                                         " has pairs of 4-bit elements, which cannot be sharded; view it as bytes");
    if (!is_utf8(shard.name))
      throw CheckpointError("MU203", folder + " was not written: the name of a sharded tensor is not UTF-8");
    entry.tensor = name;
    result.tensors.emplace_back(name, shard.local.detach().reshape({-1}));
  }
}

std::vector<format::TensorSpec> specs_of(const NamedTensors& tensors, const std::string& folder) {
  std::vector<format::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(spec_of(name, tensor, folder));
  return specs;
}

constexpr device::SyncPoint kStaged{"asynchronous saves: from the device to pinned memory"};
constexpr device::SyncPoint kWritten{"asynchronous saves: the thread reads pinned memory after the copies"};

/// Copies values of other layouts and devices with copy_().
void convert_to(char* to, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = as_bytes_if_packed(tensor.detach());
  at::from_blob(to, values.sizes(), values.options().device(at::kCPU)).copy_(values);
}

}  // namespace

RankSavePlan plan_rank(const CheckpointContents& contents, int rank, const std::filesystem::path& folder) {
  RankSavePlan result;
  std::unordered_multimap<const void*, std::size_t> kept_at;
  // Gives each tensor of a state a name in the rank's file; tensors that share their memory get one name.
  const StoreTensor store = [&](const std::string& path, const at::Tensor& tensor) {
    const void* place =
        tensor.has_storage() && !tensor.is_meta() && tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
    const auto [first, last] = kept_at.equal_range(place);
    for (auto kept = first; place && kept != last; ++kept)
      if (const auto& [name, other] = result.tensors[kept->second]; are_tied(other, tensor)) return name;
    if (place) kept_at.emplace(place, result.tensors.size());
    result.tensors.emplace_back(path, tensor);
    return path;
  };
  result.own = json_of(contents.per_rank, store, "own");
  if (rank == 0) result.shared = json_of(contents.shared, store, "shared");
  add_shards(result, contents.shards, rank, folder.string());
  result.layout = format::plan_file(specs_of(result.tensors, folder.string()), {}, folder.string(), kHeadAlignment);
  return result;
}

void HostBuffer::take(RankSavePlan& plan) {
  filled_ = plan.layout.file_bytes - plan.layout.head.size();
  const auto on_device =
      std::ranges::find_if(plan.tensors, [](const auto& entry) { return is_on_device(entry.second); });
  if (on_device != plan.tensors.end()) {
    take_from(on_device->second.device(), plan);
    plan.tensors.clear();
    return;
  }
  if (memory_.size() != 1 || memory_.front().nbytes() < filled_)
    memory_ = {at::empty({static_cast<int64_t>(filled_)}, at::TensorOptions(at::kByte))};
  char* place = filled_ > 0 ? static_cast<char*>(memory_.front().mutable_data_ptr()) : nullptr;
  std::vector<ByteCopy> copies;
  for (const std::size_t i : plan.layout.order) {
    const at::Tensor& tensor = plan.tensors[i].second;
    const std::size_t bytes = tensor.nbytes();
    if (bytes > 0 && is_plain(tensor))
      copies.push_back({place, static_cast<const char*>(tensor.const_data_ptr()), bytes});
    else if (bytes > 0) convert_to(place, tensor);
    place += bytes;
  }
  copy_bytes(copies);
  plan.tensors.clear();
}

void HostBuffer::take_from(at::Device device, const RankSavePlan& plan) {
  const auto size = [](const at::Tensor& piece) { return piece.nbytes(); };
  std::size_t room = 0;
  for (const auto& piece : memory_) room += piece.is_pinned() ? size(piece) : 0;
  if (room < filled_) {
    memory_.clear();  // first: the old and the new pieces together may be too large
    memory_ = allocate_pinned(pinned_pieces(filled_));
  }
  std::size_t piece = 0, at = 0;
  for (const std::size_t i : plan.layout.order) {
    const at::Tensor& tensor = plan.tensors[i].second;
    if (tensor.numel() == 0) continue;
    const at::Tensor bytes = bytes_of(tensor.device() == device ? tensor : dense(tensor));
    for (std::size_t done = 0; done < bytes.nbytes();) {
      if (at == size(memory_[piece])) ++piece, at = 0;
      const auto count = std::min(bytes.nbytes() - done, size(memory_[piece]) - at);
      device::async_copy(kStaged, part_of(memory_[piece], at, count), part_of(bytes, done, count));
      at += count;
      done += count;
    }
  }
  copied_ = device::record(device);
}

std::vector<std::string_view> HostBuffer::bytes() const {
  device::host_wait(kWritten, copied_);
  std::vector<std::string_view> parts;
  auto left = filled_;
  for (const auto& piece : memory_) {
    const auto count = std::min<std::size_t>(left, piece.nbytes());
    if (count > 0) parts.emplace_back(static_cast<const char*>(piece.const_data_ptr()), count);
    left -= count;
  }
  return parts;
}

std::uint64_t HostBuffer::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& piece : memory_) bytes += piece.nbytes();
  return bytes;
}

format::FileMark write_rank(const RankSavePlan& plan, const HostBuffer* taken, const CreateFile& create, int rank,
                            const std::string& id, const std::function<bool()>& go_on) {
  constexpr std::size_t kBytesPerQuestion = std::size_t{8} << 20;  // bytes between two calls of `go_on`
  auto data_file = create(format::rank_file_name(rank));
  const auto data_path = data_file->path();
  format::BlockFile file(std::move(data_file), plan.layout.file_bytes);
  const auto append = [&](std::string_view bytes) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kBytesPerQuestion))) {
      if (!go_on())
        throw CheckpointError("MU202", data_path.string() + " was not written: its writer was ended meanwhile");
      file.append(bytes.substr(0, kBytesPerQuestion));
    }
  };
  append(plan.layout.head);
  if (taken) {
    for (const auto part : taken->bytes()) append(part);
  } else {
    const auto& order = plan.layout.order;
    append_tensors(
        order.size(), [&](std::size_t i) { return plan.tensors[order[i]].second; }, append, [&] { file.flush(); });
  }
  format::RankIndex index{.id = id,
                          .rank = rank,
                          .file_bytes = plan.layout.file_bytes,
                          .block_bytes = format::kBlockBytes,
                          .checksums = file.publish(),
                          .shards = plan.shards,
                          .own = plan.own,
                          .shared = plan.shared};
  std::erase_if(index.shards, [](const format::ShardEntry& shard) { return shard.tensor.empty(); });
  const std::string text = format::to_text(index);
  const auto index_file = create(format::rank_index_name(rank));
  index_file->write(std::array{std::string_view(text)});
  index_file->publish();
  return {text.size(), format::checksum_of(text)};
}

namespace {

namespace fs = std::filesystem;
using format::Json;

/// Runs `action`, and converts its exceptions to a CheckpointError whose message begins with `prefix`.
template <class Action>
void as_checkpoint_error(const std::string& prefix, Action&& action) {
  try {
    action();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.id(), prefix + error.message());
  } catch (const std::exception& error) {
    throw CheckpointError("MU202", prefix + "nothing was saved: " + error.what());
  }
}

/// Throws the failure on all ranks alike.
void raise(const comm::Failure& failure) {
  throw CheckpointError(failure.id.empty() ? "MU202" : failure.id, failure.message);
}

/// The message of another rank under this name. Throws: CheckpointError (MU210) if it is missing or of another kind.
template <class T>
const T& field(const Json* value, const char* name) {
  const T* held = value ? value->get<T>() : nullptr;
  if (!held)
    throw CheckpointError(
        "MU210", std::string("a message between ranks has no '") + name + "': do all ranks run the same build?");
  return *held;
}
template <class T>
const T& field(const Json& message, const char* name) {
  return field<T>(message.find(name), name);
}

Json parse_message(const std::string& text) { return format::parse_json(text, "a message between ranks", "MU210"); }

Json json_of(const format::ShardEntry& shard) {
  Json::List shape;
  for (const std::int64_t size : shard.shape) shape.emplace_back(size);
  return Json::List{shard.name, shard.dtype, std::move(shape), shard.begin, shard.count};
}

format::ShardEntry shard_of(const Json& json, int rank) {
  const auto& fields = field<Json::List>(&json, "shard");
  const auto at = [&](std::size_t i) { return i < fields.size() ? &fields[i] : nullptr; };
  format::ShardEntry shard;
  shard.name = field<std::string>(at(0), "name");
  shard.dtype = field<std::string>(at(1), "dtype");
  for (const Json& size : field<Json::List>(at(2), "shape")) shard.shape.push_back(field<std::int64_t>(&size, "size"));
  shard.begin = field<std::int64_t>(at(3), "begin");
  shard.count = field<std::int64_t>(at(4), "count");
  shard.rank = rank;
  return shard;
}

Json report_of(const format::FileMark& mark, const std::vector<format::ShardEntry>& shards) {
  Json::List list;
  for (const format::ShardEntry& shard : shards) list.push_back(json_of(shard));
  return Json::Map{{"bytes", static_cast<std::int64_t>(mark.bytes)},
                   {"checksum", format::to_hex(mark.checksum)},
                   {"slices", std::move(list)}};
}

std::uint64_t checksum_in(const Json& report) {
  const auto checksum = format::from_hex(field<std::string>(report, "checksum"));
  if (!checksum)
    throw CheckpointError("MU210", "a message between ranks has no 'checksum': do all ranks run the same build?");
  return *checksum;
}

const char* kind_of_place(bool has_storage) { return has_storage ? "a custom storage" : "a folder"; }

void check_kind(const std::string& on_rank_0, bool has_storage) {
  if (on_rank_0 != kind_of_place(has_storage))
    throw CheckpointError("MU316", std::string("this rank saves to ") + kind_of_place(has_storage) + " and rank 0 to " +
                                       on_rank_0 + "; nothing was saved. Give all ranks the same storage");
}

/// Writes the manifest of what the ranks report, and publishes the checkpoint.
void publish(SaveTarget& target, const std::string& id, const std::vector<std::string>& reports) {
  format::Manifest manifest{.id = id, .indexes = {}};
  std::vector<format::ShardEntry> shards;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Json report = parse_message(reports[rank]);
    manifest.indexes.push_back({static_cast<std::uint64_t>(field<std::int64_t>(report, "bytes")), checksum_in(report)});
    for (const Json& part : field<Json::List>(report, "slices"))
      shards.push_back(shard_of(part, static_cast<int>(rank)));
  }
  format::check_shards(std::move(shards), target.path().string());
  const auto file = target.create(target.part(), std::string(format::kManifestName));
  const std::string text = format::to_text(manifest);
  file->write(std::array{std::string_view(text)});
  file->publish();
  target.publish();
}

/// Called by publish_together() on each rank: writes the rank's files, which `create` creates, marked with `id`, and
/// returns the mark of its index.
using WriteRank = std::function<format::FileMark(const CreateFile& create, const std::string& id)>;

/// Rank 0 opens the target of the options; each rank writes its files; rank 0 checks all reports, writes the manifest
/// and publishes the checkpoint. Returns the path of the checkpoint. `shards` are this rank's shards, which write_rank
/// may fill in.
/// Throws: as write_checkpoint, on all ranks alike.
/// Collective: every rank of the group.
fs::path publish_together(const fs::path& folder, const comm::Communicator& group,
                          const WriteCheckpointOptions& options, const WriteRank& write_rank,
                          const std::vector<format::ShardEntry>& shards) {
  const auto target = make_target(options);
  const auto lead = [&](const char* label, const auto& action) {
    const auto run = [&] {
      std::string said;
      as_checkpoint_error("", [&] { said = action(); });
      return said;
    };
    return comm::broadcast_result(group, label, run, raise);
  };
  const Json start = parse_message(lead("where rank 0 saves a checkpoint", [&] {
    std::random_device device;
    const std::string id = format::to_hex(std::uint64_t{device()} << 32 | device());
    target->open(folder, id);
    return format::to_text(Json::Map{{"part", target->part()},
                                     {"path", target->path().string()},
                                     {"id", id},
                                     {"to", kind_of_place(options.storage != nullptr)}});
  }));
  const auto& id = field<std::string>(start, "id");
  format::FileMark mark;
  const auto write = [&] {
    as_checkpoint_error(group.size() > 1 ? "rank " + std::to_string(group.rank()) + ": " : "", [&] {
      check_kind(field<std::string>(start, "to"), options.storage != nullptr);
      mark = write_rank(
          [&](const std::string& file) { return target->create(field<std::string>(start, "part"), file); }, id);
    });
    return std::string();
  };
  comm::all_gather_result(group, "writing the files of a checkpoint", write, raise);
  const auto texts =
      group.internal("reports of a checkpoint's files").gather_bytes(format::to_text(report_of(mark, shards)));
  lead("whether rank 0 published a checkpoint", [&] {
    publish(*target, id, texts);
    return std::string();
  });
  return field<std::string>(start, "path");
}

}  // namespace
}  // namespace muster::checkpoint

namespace muster {

std::filesystem::path write_checkpoint(const CheckpointContents& contents, const std::filesystem::path& folder,
                                       const comm::Communicator& group, const WriteCheckpointOptions& options) {
  checkpoint::RankSavePlan plan;
  const auto write_rank = [&](const checkpoint::CreateFile& create, const std::string& id) {
    auto planned = checkpoint::plan_rank(contents, group.rank(), folder);
    const auto mark = checkpoint::write_rank(planned, nullptr, create, group.rank(), id, [] { return true; });
    plan.shards = std::move(planned.shards);
    return mark;
  };
  return checkpoint::publish_together(folder, group, options, write_rank, plan.shards);
}

namespace {

namespace fs = std::filesystem;

[[noreturn]] void raise_later(const std::exception_ptr& failure, const fs::path& folder) {
  try {
    std::rethrow_exception(failure);
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.id(),
                          "the save to " + folder.string() + " that was started earlier failed: " + error.message());
  }
}

}  // namespace

class CheckpointWriter::Worker {
 public:
  Worker(const comm::Communicator& group, const WriteCheckpointOptions& options)
      : rank_(group.rank()), group_(group.internal("a checkpoint writer").duplicate()), options_(options) {}

  ~Worker() {
    if (!thread_.joinable()) return;
    {
      base::Lock lock(mutex_);
      if (!ended_.wait_for(lock, group_.timeout(), [this]() MUSTER_REQUIRES(mutex_) { return !busy_; })) {
        gives_up_ = true;
        group_.abort("the writer of checkpoints ended before its save was done");
      }
    }
    thread_.join();
    if (failure_) log_failure();
  }

  void start(const CheckpointContents& contents, const fs::path& folder) {
    wait();
    folder_ = folder;
    unplanned_ = nullptr;
    try {
      plan_ = checkpoint::plan_rank(contents, rank_, folder);
      buffer_.take(plan_);
    } catch (...) {
      unplanned_ = std::current_exception();  // the other ranks have started, so the writer's thread reports it
    }
    {
      const base::Lock lock(mutex_);
      busy_ = true;
    }
    thread_ = std::thread([this] { run(); });
  }

  fs::path wait() {
    if (thread_.joinable()) thread_.join();
    if (failure_) raise_later(std::exchange(failure_, nullptr), folder_);
    return path_;
  }

  std::uint64_t staging_bytes() const { return buffer_.memory_bytes(); }

  bool busy() const {
    const base::Lock lock(mutex_);
    return busy_;
  }

 private:
  void run() {
    const log::ThreadRank rank(rank_);
    fs::path path;
    std::exception_ptr failure;
    try {
      path = checkpoint::publish_together(
          folder_, group_, options_,
          [&](const checkpoint::CreateFile& create, const std::string& id) { return write(create, id); }, plan_.shards);
    } catch (...) {
      failure = std::current_exception();
    }
    const base::Lock lock(mutex_);
    if (!failure) path_ = path;
    failure_ = failure;
    busy_ = false;
    ended_.notify_all();
  }

  format::FileMark write(const checkpoint::CreateFile& create, const std::string& id) {
    if (unplanned_) std::rethrow_exception(unplanned_);
    return checkpoint::write_rank(plan_, &buffer_, create, rank_, id, [&] {
      const base::Lock lock(mutex_);
      return !gives_up_;
    });
  }

  void log_failure() const {
    try {
      raise_later(failure_, folder_);
    } catch (const std::exception& error) {
      log::error(error.what());
    }
  }

  int rank_;
  comm::Communicator group_;
  WriteCheckpointOptions options_;
  fs::path folder_, path_;
  checkpoint::RankSavePlan plan_;
  checkpoint::HostBuffer buffer_;
  std::exception_ptr unplanned_, failure_;
  mutable base::Mutex mutex_;
  bool busy_ MUSTER_GUARDED_BY(mutex_) = false;
  bool gives_up_ MUSTER_GUARDED_BY(mutex_) = false;
  base::Condition ended_;
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(const comm::Communicator& group, const WriteCheckpointOptions& options)
    : worker_(std::make_unique<Worker>(group, options)) {}
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::start(const CheckpointContents& contents, const fs::path& folder) {
  worker_->start(contents, folder);
}
fs::path CheckpointWriter::wait() { return worker_->wait(); }
bool CheckpointWriter::busy() const { return worker_->busy(); }
std::uint64_t CheckpointWriter::staging_bytes() const { return worker_->staging_bytes(); }

}  // namespace muster
