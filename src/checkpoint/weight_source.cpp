#include "checkpoint/weight_source.h"

#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/text.h"
#include "checkpoint/saved_tensors.h"
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

}  // namespace muster::checkpoint
