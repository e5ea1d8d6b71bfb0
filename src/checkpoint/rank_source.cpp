#include "checkpoint/rank_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/Parallel.h>

#include "base/shown.h"
#include "checkpoint/element_types.h"
#include "format/checksum.h"
#include "muster/base/error.h"

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

}  // namespace

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
  std::string start(std::min<std::uint64_t>(file->size(), format::kLengthBytes), '\0');
  if (!start.empty()) {
    if (file->can_be_mapped())
      mapping_ = std::make_shared<format::MappedFile>(*file, format::MappedFile::Access::copy_on_write);
    check(*file, mapping_.get(), 0, start.size());
    file->read_at(0, start.data(), start.size());
  }
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
  std::string list;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i) list += (i ? ", '" : " '") + names[i] + "'";
  if (names.size() > 3) list += " and " + std::to_string(names.size() - 3) + " more";
  refuse(data_name_, "has not the bytes that were saved between byte " + std::to_string(begin) + " and " +
                         std::to_string(end) + (list.empty() ? "" : ", in tensor" + list));
}

std::shared_ptr<format::MappedFile> RankSource::take_mapping(const format::InputFile& file) const {
  std::unique_lock lock(mutex_);
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

void RankSource::check() { check(*open(), mapping_.get(), 0, index_.file_bytes); }

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
  std::vector<Range> ranges;
  std::vector<Wanted> unchecked;
  std::uint64_t taken = 0;
  auto* place = static_cast<char*>(to);
  while (bytes > 0) {
    const auto block = static_cast<std::size_t>(offset / index_.block_bytes);
    const std::uint64_t begin = block * index_.block_bytes, length = block_length(block);
    const std::uint64_t wanted = std::min(bytes, begin + length - offset);
    if (is_checked_[block]) {
      if (ranges.empty() || ranges.back().offset + ranges.back().bytes != offset)
        ranges.push_back({file, offset, place, 0});
      ranges.back().bytes += wanted;
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
  read_all(ranges);
  return taken;
}

}  // namespace muster::checkpoint
