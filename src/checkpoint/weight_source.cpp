#include "checkpoint/weight_source.h"

#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/text.h"
#include "checkpoint/saved_tensors.h"
#include "format/checksum.h"
#include "format/weight_set.h"
#include "muster/base/error.h"

namespace muster::checkpoint {
namespace {

constexpr std::uint64_t kBytesPerCall = std::uint64_t{8} << 20;  // bytes that one thread reads at a time

constexpr std::uint64_t kBytesWorthMapping = std::uint64_t{256} << 10;  // size from which a mapping is faster, in bytes

void add_file(WeightSource& source, const std::filesystem::path& path) {
  auto file = std::make_shared<format::InputFile>(path);
  format::Header header = format::read_header(*file);
  source.metadata.merge(header.metadata);
  for (format::TensorEntry& entry : header.tensors) {
    const auto shape = shape_of(entry, path.string());
    const at::ScalarType type = *scalar_type(entry.type);
    std::string name = entry.name;
    const auto [place, fresh] =
        source.tensors.emplace(std::move(name), StoredTensor{std::move(entry), file, shape, type});
    if (!fresh)
      throw CheckpointError("MU205", "tensor " + in_quotes(place->first) + " is in two files, " +
                                         place->second.file->path().string() + " and " + path.string());
  }
}

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

}  // namespace

WeightSource open_weights(const std::filesystem::path& path) {
  WeightSource source;
  format::open_weight_set(path, [&](const format::WeightSet& set) {
    source = {};
    if (set.files != std::vector{path} && format::is_of_python(set))
      throw CheckpointError("MU200", path.string() + " holds weights in files of torch.save, such as " +
                                         set.files.front().filename().string() +
                                         ": read them by load_model or load_python, or make safetensors files of them "
                                         "by muster convert");
    for (const auto& file : set.files) add_file(source, file);
    std::map<std::string, std::string> file_of;
    for (const auto& [name, tensor] : source.tensors) file_of[name] = tensor.file->path().filename().string();
    format::require_indexed(set, file_of);
  });
  return source;
}

Transfer whole(const StoredTensor& tensor, void* to) {
  return {tensor.file, tensor.entry.offset, to, tensor.entry.bytes};
}

void read_all(const std::vector<Transfer>& transfers) {
  std::map<const format::InputFile*, std::unique_ptr<format::MappedFile>> mappings;
  std::vector<std::pair<Transfer, const format::MappedFile*>> pieces;
  for (const Transfer& transfer : transfers) {
    auto& mapping = mappings[transfer.file.get()];
    if (!mapping && transfer.bytes >= kBytesWorthMapping && transfer.file->can_be_mapped())
      mapping = std::make_unique<format::MappedFile>(*transfer.file, format::MappedFile::Access::read);
    for (std::uint64_t done = 0; done < transfer.bytes; done += kBytesPerCall)
      pieces.push_back({{transfer.file, transfer.offset + done, static_cast<char*>(transfer.to) + done,
                         std::min(kBytesPerCall, transfer.bytes - done)},
                        mapping.get()});
  }
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [piece, mapping] = pieces[static_cast<std::size_t>(i)];
      // Copying large pieces that are in the page cache from a mapping of the file is faster than read().
      const bool is_mapped = mapping && piece.bytes >= kBytesWorthMapping;
      if (!is_mapped || !mapping->copy_to(*piece.file, piece.to, piece.offset, piece.bytes))
        piece.file->read_at(piece.offset, piece.to, piece.bytes);
    }
  });
}

at::Tensor Mappings::tensor(const StoredTensor& stored) {
  const auto options = at::TensorOptions().dtype(stored.type);
  if (stored.entry.bytes == 0) return at::empty(stored.shape, options);
  auto& mapping = of_file_[stored.file.get()];
  if (!mapping) mapping = std::make_shared<format::MappedFile>(*stored.file, format::MappedFile::Access::copy_on_write);
  std::byte* place = mapping->data() + stored.entry.offset;
  if (reinterpret_cast<std::uintptr_t>(place) % c10::elementSize(stored.type) == 0)
    return at::from_blob(
        place, stored.shape, [keep = mapping](void*) mutable { keep.reset(); }, options);
  at::Tensor copy = at::empty(stored.shape, options);
  std::memcpy(copy.mutable_data_ptr(), place, stored.entry.bytes);
  return copy;
}

void check_booleans(const StoredTensor& tensor) {
  if (tensor.entry.type != format::ElementType::boolean) return;
  std::vector<unsigned char> bytes(std::min<std::uint64_t>(tensor.entry.bytes, 1 << 20));
  for (std::uint64_t done = 0; done < tensor.entry.bytes; done += bytes.size()) {
    bytes.resize(std::min<std::uint64_t>(bytes.size(), tensor.entry.bytes - done));
    tensor.file->read_at(tensor.entry.offset + done, bytes.data(), bytes.size());
    if (std::any_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte > 1; }))
      throw CheckpointError("MU201", tensor.file->path().string() + ": tensor '" + tensor.entry.name +
                                         "' is BOOL and has a byte other than 0 and 1; the file is damaged");
  }
}

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

}  // namespace muster::checkpoint
