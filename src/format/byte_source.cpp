#include "format/byte_source.h"

#include <cstring>
#include <utility>

#include "format/input_file.h"

namespace muster::format {

std::string ByteSource::text(std::uint64_t offset, std::uint64_t bytes) const {
  std::string result(bytes, '\0');
  if (bytes > 0) read(offset, result.data(), result.size());
  return result;
}

ByteSource source_of(std::shared_ptr<const InputFile> file) {
  ByteSource source{.name = file->path().string(), .size = file->size(), .read = {}};
  source.read = [file = std::move(file)](std::uint64_t offset, void* to, std::size_t bytes) {
    file->read_at(offset, to, bytes);
  };
  return source;
}

ByteSource source_of(std::string_view bytes, std::string name) {
  return {.name = std::move(name),
          .size = bytes.size(),
          .read = [bytes](std::uint64_t offset, void* to, std::size_t count) {
            std::memcpy(to, bytes.data() + offset, count);
          }};
}

}  // namespace muster::format
