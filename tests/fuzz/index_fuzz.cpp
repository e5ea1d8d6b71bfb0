#include "format/weight_set.h"
#include "fuzz.h"

// What is read must be written and read again alike.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return muster::fuzz::read(data, size, [](std::string_view text) {
    using namespace muster::format;
    const WeightIndex index = parse_index(text, "file"), again = parse_index(to_json(index), "file");
    if (index.file_of != again.file_of || index.total_bytes != again.total_bytes) __builtin_trap();
    for (const auto& [tensor, file] : index.file_of)
      if (file.empty() || file.find('/') != file.npos || file.find('\x1b') != file.npos) __builtin_trap();
  });
}
