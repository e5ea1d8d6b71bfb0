#include <atomic>
#include <cstring>
#include <unordered_map>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "base/mutex.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/state_json.h"
#include "checkpoint/weight_source.h"
#include "format/checksum.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"

namespace muster::checkpoint {
namespace {

/// Bytes read per checksum call, so that they stay in the processor's cache.
constexpr std::size_t kBytesPerCheck = std::size_t{256} << 10;

/// Converts the error to one about a file of a checkpoint.
template <class Action>
auto as_file_of_checkpoint(Action&& action) {
  try {
    return action();
  } catch (const CheckpointError& error) {
    if (error.id() != "MU200") throw;
    throw CheckpointError(
        "MU213", error.message() + "; the checkpoint is not whole: copy it again as a whole, or load an older one");
  }
}

/// The verified files of one rank in a checkpoint. Thread safety: all functions from any thread.
class RankSource {
 public:
  /// Reads and checks the index and the head of the tensors' file. Without `check_head`, the head is trusted if it can
  /// be parsed; its bytes count as not checked.
  /// Throws: CheckpointError MU213, MU201, MU207.
  RankSource(std::shared_ptr<const CheckpointFiles> files, const format::Manifest& manifest, int rank, bool check_head);

  /// Marks all blocks as checked.
  void trust_values();

  const format::RankIndex& index() const { return index_; }
  /// Throws: CheckpointError MU213 if the tensors' file has no such tensor.
  const format::TensorEntry& entry(const std::string& name) const;
  /// A private mapping of the tensors' file for the caller, which may write to it. The first caller gets the mapping
  /// that check() used, so that its pages need not be loaded again. nullptr if the file cannot be mapped.
  std::shared_ptr<format::MappedFile> take_mapping(const format::InputFile& file) const;
  /// The tensors' file. Throws: CheckpointError MU213 if it is missing or has another size.
  std::shared_ptr<format::InputFile> open() const;

  /// Checks all blocks that are not checked yet. Throws: CheckpointError MU213 with the names of the tensors in a
  /// damaged block, MU200.
  void check();
  /// Checks the blocks [first, last), reading each of their bytes once.
  void check_blocks(std::size_t first, std::size_t last) const;
  /// As check(), for the blocks of a part of the file. Bytes resident in `mapping`, which may be null, are not read.
  void check(const format::InputFile& file, const format::MappedFile* mapping, std::uint64_t offset,
             std::uint64_t bytes) const;

  /// Fills `to` with these bytes of the tensors' file, and checks the blocks that are not checked yet. Returns the
  /// number of bytes read from the file. Throws: CheckpointError MU213, MU200.
  std::uint64_t read(std::uint64_t offset, void* to, std::uint64_t bytes) const;

 private:
  void read_index(const format::Manifest& manifest, int rank);
  void read_head();
  void read_checked_head() MUSTER_NO_THREAD_SAFETY_ANALYSIS;  // called by the constructor
  /// A block to check, with a range of its bytes to copy to `to`.
  struct Wanted {
    std::size_t block;
    std::uint64_t skip, bytes;
    char* to;
  };
  void read_block(const format::InputFile& file, const Wanted& wanted) const;
  std::uint64_t block_length(std::size_t block) const;
  void check_block(const format::InputFile& file, const format::MappedFile* mapping, std::size_t block) const;
  void compare(std::size_t block, std::uint64_t checksum) const;
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

  std::shared_ptr<const CheckpointFiles> files_;
  std::string data_name_;
  format::RankIndex index_;
  std::unordered_map<std::string, format::TensorEntry> entries_;
  std::unique_ptr<std::atomic<bool>[]> is_checked_;  ///< one flag per block
  mutable std::shared_ptr<format::MappedFile> mapping_ MUSTER_GUARDED_BY(mutex_);
  mutable base::Mutex mutex_;
};

RankSource::RankSource(std::shared_ptr<const CheckpointFiles> files, const format::Manifest& manifest, int rank,
                       bool check_head)
    : files_(std::move(files)), data_name_(format::rank_file_name(rank)) {
  read_index(manifest, rank);
  is_checked_ = std::make_unique<std::atomic<bool>[]>(index_.checksums.size());
  try {
    check_head ? read_checked_head() : read_head();
  } catch (const CheckpointError&) {
    if (check_head) throw;
    entries_.clear();
    read_checked_head();  // reports a damaged head as such
  }
}

void RankSource::trust_values() {
  for (std::size_t block = 0; block < index_.checksums.size(); ++block) is_checked_[block] = true;
}

void RankSource::refuse(const std::string& name, const std::string& what) const {
  throw CheckpointError(
      "MU213",
      (files_->path() / name).string() + " " + what +
          ": it is torn, was edited, or belongs to another checkpoint; nothing was loaded. Copy the checkpoint again "
          "as a whole, or load an older one");
}

void RankSource::read_index(const format::Manifest& manifest, int rank) {
  const std::string name = format::rank_index_name(rank);
  const format::FileMark& mark = manifest.indexes[static_cast<std::size_t>(rank)];
  const std::string text = as_file_of_checkpoint([&] {
    const auto file = files_->open(name);
    if (file->size() != mark.bytes)
      refuse(name, "has " + std::to_string(file->size()) + " bytes, not the " + std::to_string(mark.bytes) +
                       " that were saved");
    return file->read_text(mark.bytes);
  });
  if (format::checksum_of(text) != mark.checksum) refuse(name, "has not the bytes that were saved");
  index_ = format::parse_rank_index(text, (files_->path() / name).string());
  if (index_.id != manifest.id || index_.rank != rank)
    refuse(name, "is not of this save or not of rank " + std::to_string(rank));
}

std::shared_ptr<format::InputFile> RankSource::open() const {
  return as_file_of_checkpoint([&] {
    auto file = files_->open(data_name_);
    if (file->size() != index_.file_bytes)
      refuse(data_name_, "has " + std::to_string(file->size()) + " bytes, not the " +
                             std::to_string(index_.file_bytes) + " that were saved");
    return file;
  });
}

void RankSource::read_checked_head() {
  const auto file = open();
  const auto length_bytes = std::min<std::uint64_t>(file->size(), format::kLengthBytes);
  if (length_bytes > 0 && file->can_be_mapped())
    mapping_ = std::make_shared<format::MappedFile>(*file, format::MappedFile::Access::copy_on_write);
  check(*file, mapping_.get(), 0, length_bytes);
  const std::string start = file->text(0, length_bytes);
  check(*file, mapping_.get(), 0,
        format::kLengthBytes + format::header_length(start, file->size(), file->path().string()));
  read_head();
}

void RankSource::read_head() {
  const auto file = open();
  for (format::TensorEntry& entry : format::read_header(*file).tensors) {
    shape_of(entry, file->path().string());
    std::string name = entry.name;
    entries_.emplace(std::move(name), std::move(entry));
  }
}

const format::TensorEntry& RankSource::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) refuse(data_name_, "has no tensor " + in_quotes(name) + ", which its index names");
  return found->second;
}

std::uint64_t RankSource::block_length(std::size_t block) const {
  return std::min(index_.block_bytes, index_.file_bytes - block * index_.block_bytes);
}

void RankSource::compare(std::size_t block, std::uint64_t checksum) const {
  if (checksum == index_.checksums[block]) {
    is_checked_[block] = true;
    return;
  }
  const std::uint64_t begin = block * index_.block_bytes, end = begin + block_length(block);
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_)
    if (entry.offset < end && entry.offset + entry.bytes > begin) names.push_back(name);
  std::sort(names.begin(), names.end());
  std::string list = joined(std::span(names).first(std::min<std::size_t>(names.size(), 3)), quoted);
  if (names.size() > 3) list += " and " + std::to_string(names.size() - 3) + " more";
  refuse(data_name_, "has not the bytes that were saved between byte " + std::to_string(begin) + " and " +
                         std::to_string(end) + (list.empty() ? "" : ", in tensor " + list));
}

std::shared_ptr<format::MappedFile> RankSource::take_mapping(const format::InputFile& file) const {
  base::Lock lock(mutex_);
  if (mapping_) return std::exchange(mapping_, nullptr);
  lock.unlock();
  if (!file.can_be_mapped()) return nullptr;
  return std::make_shared<format::MappedFile>(file, format::MappedFile::Access::copy_on_write);
}

/// Checks resident memory in place, so that it need not be loaded again when it is used.
void RankSource::check_block(const format::InputFile& file, const format::MappedFile* mapping,
                             std::size_t block) const {
  if (is_checked_[block]) return;
  const std::uint64_t begin = block * index_.block_bytes, length = block_length(block);
  if (mapping && mapping->is_resident(file, begin, static_cast<std::size_t>(length))) {
    compare(block, format::checksum_of(
                       {reinterpret_cast<const char*>(mapping->data()) + begin, static_cast<std::size_t>(length)}));
    return;
  }
  read_block(file, {block, 0, 0, nullptr});
}

/// Each piece is hashed and copied while it is in the processor's cache.
void RankSource::read_block(const format::InputFile& file, const Wanted& wanted) const {
  const std::uint64_t begin = wanted.block * index_.block_bytes, length = block_length(wanted.block),
                      end = wanted.skip + wanted.bytes;
  std::vector<char> scratch;
  format::Checksum checksum;
  // In other files, a call costs more than the cache saves.
  const std::uint64_t at_once = file.can_be_mapped() ? kBytesPerCheck : length;
  for (std::uint64_t done = 0; done < length; done += at_once) {
    const std::uint64_t bytes = std::min(at_once, length - done);
    const bool straight = done >= wanted.skip && done + bytes <= end;
    if (!straight) scratch.resize(at_once);
    char* target = straight ? wanted.to + (done - wanted.skip) : scratch.data();
    file.read_at(begin + done, target, static_cast<std::size_t>(bytes));
    checksum.update(target, static_cast<std::size_t>(bytes));
    const std::uint64_t from = std::max(done, wanted.skip), until = std::min(done + bytes, end);
    if (!straight && from < until)
      std::memcpy(wanted.to + (from - wanted.skip), target + (from - done), static_cast<std::size_t>(until - from));
  }
  compare(wanted.block, checksum.value());
}

void RankSource::check_blocks(std::size_t first, std::size_t last) const {
  if (first >= last) return;
  const auto file = open();
  at::parallel_for(static_cast<int64_t>(first), static_cast<int64_t>(last), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      read_block(*file, {static_cast<std::size_t>(block), 0, 0, nullptr});
  });
}

void RankSource::check() {
  std::shared_ptr<format::MappedFile> mapping;
  {
    const base::Lock lock(mutex_);
    mapping = mapping_;
  }
  check(*open(), mapping.get(), 0, index_.file_bytes);
}

void RankSource::check(const format::InputFile& file, const format::MappedFile* mapping, std::uint64_t offset,
                       std::uint64_t bytes) const {
  if (bytes == 0) return;
  const auto first = static_cast<std::ptrdiff_t>(offset / index_.block_bytes);
  const auto last = static_cast<std::ptrdiff_t>((std::min(offset + bytes, index_.file_bytes) - 1) / index_.block_bytes);
  if (std::all_of(&is_checked_[first], &is_checked_[last] + 1,
                  [](const std::atomic<bool>& done) { return done.load(); }))
    return;
  at::parallel_for(first, last + 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) check_block(file, mapping, static_cast<std::size_t>(block));
  });
}

std::uint64_t RankSource::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
  const auto file = open();
  std::vector<Transfer> transfers;
  std::vector<Wanted> unchecked;
  std::uint64_t taken = 0;
  auto* place = static_cast<char*>(to);
  while (bytes > 0) {
    const auto block = static_cast<std::size_t>(offset / index_.block_bytes);
    const std::uint64_t begin = block * index_.block_bytes, length = block_length(block);
    const std::uint64_t wanted = std::min(bytes, begin + length - offset);
    if (is_checked_[block]) {
      if (transfers.empty() || transfers.back().offset + transfers.back().bytes != offset)
        transfers.push_back({file, offset, place, 0});
      transfers.back().bytes += wanted;
      taken += wanted;
    } else {
      unchecked.push_back({block, offset - begin, wanted, place});
      taken += length;
    }
    offset += wanted;
    place += wanted;
    bytes -= wanted;
  }
  at::parallel_for(0, static_cast<int64_t>(unchecked.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) read_block(*file, unchecked[static_cast<std::size_t>(i)]);
  });
  read_all(transfers);
  return taken;
}

}  // namespace
}  // namespace muster::checkpoint

namespace muster {
namespace {

namespace fs = std::filesystem;
using checkpoint::RankSource;

constexpr std::uint64_t kMaxManifestBytes = 1'000'000'000;  // limit on a manifest in bytes

format::Manifest read_manifest(const checkpoint::CheckpointFiles& files) {
  try {
    const auto file = files.open(std::string(format::kManifestName));
    return format::parse_manifest(file->read_text(kMaxManifestBytes), file->path().string());
  } catch (const CheckpointError& error) {
    if (error.id() != "MU200") throw;
    throw CheckpointError("MU210", error.message() + "; " + files.path().string() +
                                       " is not a complete checkpoint: name a folder that was saved as one");
  }
}

void check_booleans(const char* begin, const char* end, const std::string& name, const fs::path& path) {
  if (std::any_of(begin, end, [](char byte) { return static_cast<unsigned char>(byte) > 1; }))
    throw CheckpointError("MU213",
                          path.string() + ": tensor " + in_quotes(name) + " is BOOL and has a byte other than 0 and 1");
}

}  // namespace

class Checkpoint::Files {
 public:
  Files(const fs::path& path, const ReadCheckpointOptions& options) : options_(options) {
    checkpoint_files_ = checkpoint::open_checkpoint_files(path, options.storage);
    const format::Manifest manifest = read_manifest(*checkpoint_files_);
    id_ = manifest.id;
    const auto ranks = static_cast<int>(manifest.indexes.size());
    for (int rank = 0; rank < ranks; ++rank)
      sources_.push_back(
          std::make_unique<RankSource>(checkpoint_files_, manifest, rank, options.check != CheckpointCheck::share));
    if (options.check == CheckpointCheck::share) check_share();
    for (const auto& source : sources_) {
      if (options.check == CheckpointCheck::everything) source->check();
      if (options.check == CheckpointCheck::layout || options.check == CheckpointCheck::share) source->trust_values();
    }
    try {
      collect_shards();
      for (const auto& source : sources_) check_state(*source);
    } catch (const CheckpointError&) {
      if (options.check == CheckpointCheck::share)  // the damage may be in another rank's share
        for (const auto& source : sources_) source->check_blocks(0, source->index().checksums.size());
      throw;
    }
  }

  const fs::path& path() const { return checkpoint_files_->path(); }
  const std::string& id() const { return id_; }
  int world_size() const { return static_cast<int>(sources_.size()); }
  const std::vector<ShardedTensorMetadata>& sharded() const { return sharded_; }

  State state(int rank, bool own) const {
    if (rank < 0 || rank >= world_size())
      throw CheckpointError("MU215", path().string() + " was saved by " + std::to_string(world_size()) +
                                         " ranks, there is no rank " + std::to_string(rank));
    const RankSource& source = *sources_[static_cast<std::size_t>(rank)];
    return state(source, own ? source.index().own : source.index().shared);
  }

  std::optional<State> shared_entry(std::string_view name) const {
    const RankSource& source = *sources_.front();
    const auto* entries = source.index().shared.find("map");
    const auto* entry = entries ? entries->find(checkpoint::escaped(name, /*in_path=*/false)) : nullptr;
    return entry ? std::optional(state(source, *entry)) : std::nullopt;
  }

  State state(const RankSource& source, const format::Json& json) const {
    const auto file = source.open();
    const auto mapping = source.take_mapping(*file);
    checkpoint::Mappings mappings(file, mapping);
    std::map<std::string, at::Tensor> made;  // tensors that shared memory when saved share it again
    const auto find = [&](const std::string& name) {
      auto& tensor = made[name];
      if (!tensor.defined()) tensor = load(source, name, file, mapping.get(), mappings);
      return tensor;
    };
    return checkpoint::state_of(json, find, path().string());
  }

  const ShardedTensorMetadata& find(std::string_view name) const {
    const auto found = std::ranges::lower_bound(sharded_, name, {}, &ShardedTensorMetadata::name);
    if (found != sharded_.end() && found->name == name) return *found;
    throw CheckpointError("MU215",
                          path().string() + " has no sharded tensor " + in_quotes(name) + "; it has: " +
                              listed(sharded_, [](const ShardedTensorMetadata& tensor) { return shown(tensor.name); }));
  }

  void read(std::string_view name, std::int64_t begin, const at::Tensor& to) {
    const ShardedTensorMetadata& tensor = find(name);
    const std::int64_t end = begin + to.numel();
    const auto refuse = [&](const std::string& what) {
      throw CheckpointError("MU215", path().string() + ": sharded tensor " + in_quotes(name) + " " + what);
    };
    check_range(tensor, begin, end);
    if (to.scalar_type() != tensor.dtype)
      refuse(std::string("has dtype ") + c10::toString(tensor.dtype) + ", it was to be read as " +
             c10::toString(to.scalar_type()));
    const bool on_device = checkpoint::is_on_device(to);
    if (!(to.device().is_cpu() || on_device) || !to.is_contiguous())
      refuse("can only be read into a contiguous tensor on the CPU or on the accelerator");
    if (to.numel() == 0) return;
    if (on_device) {
      const auto each = static_cast<std::int64_t>(to.element_size());
      checkpoint::DeviceFiller()(to, [&](char* piece, std::size_t offset, std::size_t bytes) {
        const auto first = begin + static_cast<std::int64_t>(offset) / each;
        read_elements(tensor, first, first + static_cast<std::int64_t>(bytes) / each, piece);
      });
      return;
    }
    read_elements(tensor, begin, end, static_cast<char*>(to.mutable_data_ptr()));
    // The bytes were written behind autograd's back, and a graph that saved the tensor must detect the change.
    if (!to.is_inference()) to.unsafeGetTensorImpl()->bump_version();
  }

  void check_range(const ShardedTensorMetadata& tensor, std::int64_t begin, std::int64_t end) const {
    if (begin < 0 || end < begin || end > tensor.numel())
      throw CheckpointError("MU215", path().string() + ": sharded tensor " + in_quotes(tensor.name) + " has " +
                                         std::to_string(tensor.numel()) + " elements; " + std::to_string(begin) +
                                         " to " + std::to_string(end) + " were asked for");
  }

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void read_elements(const ShardedTensorMetadata& tensor, std::int64_t begin, std::int64_t end, char* place) {
    const auto bytes_each = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
    const auto* const first = place;
    const auto shards = std::ranges::equal_range(shards_, tensor.name, {}, &format::ShardEntry::name);
    auto shard =
        std::upper_bound(shards.begin(), shards.end(), begin,
                         [](std::int64_t at, const format::ShardEntry& next) { return at < next.begin + next.count; });
    for (; begin < end; ++shard) {
      const std::int64_t count = std::min(end, shard->begin + shard->count) - begin;
      const auto skipped = static_cast<std::uint64_t>((begin - shard->begin) * bytes_each);
      bytes_read_ += sources_[static_cast<std::size_t>(shard->rank)]->read(
          shard->offset + skipped, place, static_cast<std::uint64_t>(count * bytes_each));
      place += count * bytes_each;
      begin += count;
    }
    if (tensor.dtype == at::kBool) check_booleans(first, place, tensor.name, path());
  }

  at::Tensor load(const RankSource& source, const std::string& name, const std::shared_ptr<format::InputFile>& file,
                  const format::MappedFile* mapping, checkpoint::Mappings& mappings) const {
    const format::TensorEntry& entry = source.entry(name);
    const checkpoint::StoredTensor stored{entry, file, checkpoint::shape_of(entry, path().string()),
                                          *checkpoint::scalar_type(entry.type)};
    const bool is_mapped = file->can_be_mapped();
    if (is_mapped) {
      source.check(*file, mapping, entry.offset, entry.bytes);
      checkpoint::check_booleans(stored);
      if (options_.map) return mappings.tensor(stored);
    }
    at::Tensor tensor = at::empty(stored.shape, at::TensorOptions().dtype(stored.type));
    if (is_mapped) {
      checkpoint::read_all({checkpoint::whole(stored, tensor.mutable_data_ptr())});
      return tensor;
    }
    source.read(entry.offset, tensor.mutable_data_ptr(), entry.bytes);  // reads each byte once, and checks it
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    if (stored.type == at::kBool) check_booleans(bytes, bytes + tensor.numel(), entry.name, path());
    return tensor;
  }

  /// A share is a range of bytes over all files in order, and a block belongs to the share in which it begins: if as
  /// many ranks load as saved, each checks about as much as it reads.
  void check_share() const {
    std::uint64_t total = 0, before = 0;
    for (const auto& source : sources_) total += source->index().file_bytes;
    const auto part = static_cast<std::uint64_t>(options_.part), parts = static_cast<std::uint64_t>(options_.parts);
    const std::uint64_t first = total / parts * part, last = part + 1 == parts ? total : total / parts * (part + 1);
    for (const auto& source : sources_) {
      const auto& [bytes, block] = std::pair(source->index().file_bytes, source->index().block_bytes);
      const auto first_block_from = [&](std::uint64_t at) {
        return static_cast<std::size_t>((std::clamp(at, before, before + bytes) - before + block - 1) / block);
      };
      source->check_blocks(first_block_from(first), first_block_from(last));
      before += bytes;
    }
  }

  /// The shards in the indexes must match the stored tensors, and each tensor must be covered exactly once.
  void collect_shards() {
    for (const auto& source : sources_)
      for (const format::ShardEntry& shard : source->index().shards) {
        const format::TensorEntry& entry = source->entry(shard.tensor);
        const auto shape = checkpoint::shape_of(entry, path().string());
        if (shape.size() != 1)
          throw CheckpointError("MU213", path().string() + ": the shard of " + in_quotes(shard.name) +
                                             " is not a tensor of one dimension; the file was edited");
        shards_.push_back(format::located(shard, entry, shape[0], source->index().rank));
      }
    shards_ = format::check_shards(std::move(shards_), path().string());
    for (const format::ShardEntry& shard : shards_)
      if (sharded_.empty() || sharded_.back().name != shard.name)
        sharded_.push_back({shard.name, shard.shape, *checkpoint::scalar_type(*format::element_type(shard.dtype))});
    std::erase_if(shards_, [](const format::ShardEntry& shard) { return shard.count == 0; });
  }

  /// Checks a state before anything is handed out.
  void check_state(const RankSource& source) const {
    const auto only_look = [&](const std::string& name) {
      source.entry(name);
      return at::Tensor();
    };
    checkpoint::state_of(source.index().own, only_look, path().string());
    checkpoint::state_of(source.index().shared, only_look, path().string());
  }

  ReadCheckpointOptions options_;
  std::shared_ptr<const checkpoint::CheckpointFiles> checkpoint_files_;
  std::string id_;
  std::vector<std::unique_ptr<RankSource>> sources_;
  std::vector<ShardedTensorMetadata> sharded_;  ///< sorted by name
  std::vector<format::ShardEntry> shards_;      ///< those with elements, sorted by name and beginning, without gaps
  std::atomic<std::uint64_t> bytes_read_{0};
};

std::int64_t ShardedTensorMetadata::numel() const { return c10::multiply_integers(shape); }

Checkpoint::Checkpoint(const fs::path& folder, const ReadCheckpointOptions& options)
    : files_(std::make_shared<Files>(folder, options)) {}

const fs::path& Checkpoint::path() const { return files_->path(); }
const std::string& Checkpoint::id() const { return files_->id(); }
int Checkpoint::world_size() const { return files_->world_size(); }
State Checkpoint::shared() const { return files_->state(0, false); }
std::optional<State> Checkpoint::shared_entry(std::string_view name) const { return files_->shared_entry(name); }
State Checkpoint::per_rank(int rank) const { return files_->state(rank, true); }
const std::vector<ShardedTensorMetadata>& Checkpoint::sharded() const { return files_->sharded(); }
const ShardedTensorMetadata& Checkpoint::sharded(std::string_view name) const { return files_->find(name); }
void Checkpoint::read(std::string_view name, std::int64_t begin, const at::Tensor& to) const {
  files_->read(name, begin, to);
}
std::uint64_t Checkpoint::bytes_read() const { return files_->bytes_read(); }

at::Tensor Checkpoint::read(std::string_view name, std::int64_t begin, std::int64_t end) const {
  const ShardedTensorMetadata& tensor = sharded(name);
  files_->check_range(tensor, begin, end);
  at::Tensor values = at::empty({end - begin}, at::TensorOptions().dtype(tensor.dtype));
  read(name, begin, values);
  return values;
}

}  // namespace muster
