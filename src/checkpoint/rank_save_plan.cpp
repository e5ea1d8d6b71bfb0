#include "checkpoint/rank_save_plan.h"

#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/text.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/state_json.h"
#include "format/atomic_file.h"
#include "muster/base/error.h"

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

}  // namespace muster::checkpoint
