#include "format/safetensors.h"
#include "format/weight_set.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return muster::fuzz::read(data, size, [](std::string_view bytes) {
    using namespace muster::format;
    if (bytes.starts_with('{')) {
      parse_index(bytes, "index");
      return;
    }
    // What was read must be what is written again.
    const Header header = parse_header(bytes, bytes.size(), "file");
    const std::vector<TensorSpec> specs(header.tensors.begin(), header.tensors.end());
    const FilePlan plan = plan_file(specs, header.metadata, "file");
    const Header again = parse_header(plan.head, plan.file_bytes, "file");
    if (again.tensors.size() != header.tensors.size() || again.metadata != header.metadata) __builtin_trap();
  });
}
