#include "format/block_file.h"

#include <algorithm>
#include <utility>

namespace muster::format {
namespace {

/// Bytes per write. Bytes read for a checksum are still in the processor's cache when the kernel copies them; and in
/// one large write the kernel uses the largest pages it has, which are cheaper to write and to map.
constexpr std::size_t kBytesPerWrite = std::size_t{4} << 20;
constexpr std::size_t kPiecesPerWrite = 1024;  // limit on pieces per write

}  // namespace

BlockFile::BlockFile(std::unique_ptr<OutputFile> file, std::uint64_t bytes) : file_(std::move(file)) {
  file_->reserve(bytes);
}

void BlockFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kBytesPerWrite - waiting_bytes_);
    bytes.remove_prefix(piece.size());
    waiting_.push_back(piece);
    waiting_bytes_ += piece.size();
    if (waiting_bytes_ == kBytesPerWrite || waiting_.size() == kPiecesPerWrite) flush();
  }
}

void BlockFile::add_to_checksums(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, static_cast<std::size_t>(kBlockBytes - block_filled_));
    block_.update(piece.data(), piece.size());
    block_filled_ += piece.size();
    bytes.remove_prefix(piece.size());
    if (block_filled_ < kBlockBytes) continue;
    checksums_.push_back(block_.value());
    block_.reset();
    block_filled_ = 0;
  }
}

void BlockFile::flush() {
  for (const std::string_view piece : waiting_) add_to_checksums(piece);
  file_->write(waiting_);
  waiting_.clear();
  waiting_bytes_ = 0;
}

std::vector<std::uint64_t> BlockFile::publish() {
  flush();
  if (block_filled_ > 0) checksums_.push_back(block_.value());
  block_filled_ = 0;
  file_->publish();
  return checksums_;
}

}  // namespace muster::format
