#include "format/python_file.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return muster::fuzz::read(data, size, [](std::string_view bytes) {
    using namespace muster::format;
    const PythonFile file = read_python_file(muster::checks::in_memory(bytes, "file"));
    for (const PythonStorage& storage : file.storages)
      if (storage.offset > bytes.size() || storage.bytes > bytes.size() - storage.offset) __builtin_trap();
    for (const PythonTensor& tensor : file.tensors) is_dense(tensor);
  });
}
