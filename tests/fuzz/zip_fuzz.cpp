#include "format/zip.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return muster::fuzz::read(data, size, [](std::string_view bytes) {
    using namespace muster::format;
    const InputFile source = muster::checks::in_memory(bytes, "file");
    is_zip(source);
    for (const ZipEntry& entry : read_zip(source)) {
      if (entry.offset > bytes.size() || entry.bytes > bytes.size() - entry.offset) __builtin_trap();
      muster::fuzz::read(nullptr, 0, [&](std::string_view) { read_record(source, entry, 1 << 20); });
    }
  });
}
