#include "checkpoint/weight_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/shown.h"
#include "checkpoint/element_types.h"
#include "format/weight_set.h"
#include "muster/base/error.h"

namespace muster::checkpoint {
namespace {

constexpr std::uint64_t kBytesPerCall = std::uint64_t{8} << 20;  // bytes that one thread reads at a time

constexpr std::uint64_t kBytesWorthMapping = std::uint64_t{256} << 10;  // size from which a mapping is faster, in bytes

struct Piece {
  const format::InputFile* file;
  const format::MappedFile* mapping;
  std::uint64_t offset;
  char* to;
  std::size_t bytes;
};

/// Copies large pieces that are in the page cache from a mapping of the file, which is faster than read().
void read_piece(const Piece& piece) {
  const bool mapped = piece.mapping && piece.bytes >= kBytesWorthMapping;
  if (!mapped || !piece.mapping->copy_to(*piece.file, piece.to, piece.offset, piece.bytes))
    piece.file->read_at(piece.offset, piece.to, piece.bytes);
}

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

void read_all(const std::vector<Transfer>& transfers) {
  std::vector<Range> ranges;
  for (const auto& [from, to] : transfers) ranges.push_back({from->file, from->entry.offset, to, from->entry.bytes});
  read_all(ranges);
}

void read_all(const std::vector<Range>& ranges) {
  std::map<const format::InputFile*, std::unique_ptr<format::MappedFile>> mappings;
  std::vector<Piece> pieces;
  for (const Range& range : ranges) {
    auto& mapping = mappings[range.file.get()];
    if (!mapping && range.bytes >= kBytesWorthMapping && range.file->can_be_mapped())
      mapping = std::make_unique<format::MappedFile>(*range.file, format::MappedFile::Access::read);
    for (std::uint64_t done = 0; done < range.bytes; done += kBytesPerCall)
      pieces.push_back({range.file.get(), mapping.get(), range.offset + done, static_cast<char*>(range.to) + done,
                        static_cast<std::size_t>(std::min(kBytesPerCall, range.bytes - done))});
  }
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) read_piece(pieces[static_cast<std::size_t>(i)]);
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

}  // namespace muster::checkpoint
