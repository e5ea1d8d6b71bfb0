#include "format/python_file.h"
#include "format/zip.h"
#include "fuzz.h"

// The pickle of a file whose storages "0" to "9" have 64 bytes each, so that tensors are made, too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return muster::fuzz::read(data, size, [](std::string_view pickle) {
    using namespace muster::format;
    std::string bytes;
    ZipLayout layout;
    const auto add = [&](const std::string& name, std::string_view record) {
      bytes += layout.begin("x/" + name, record.size(), crc32(record));
      bytes += record;
    };
    add("data.pkl", pickle);
    for (int i = 0; i < 10; ++i) add("data/" + std::to_string(i), std::string(64, '\1'));
    if (pickle.size() % 2) add("constants.pkl", "");
    bytes += layout.end();
    const PythonFile file = read_python_file(muster::checks::in_memory(bytes, "file"));
    for (const PythonTensor& tensor : file.tensors) {
      std::uint64_t last = static_cast<std::uint64_t>(tensor.offset) + 1;
      for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
        if (tensor.shape[i] == 0) last = 0;
        if (tensor.shape[i] == 0) break;
        last += static_cast<std::uint64_t>((tensor.shape[i] - 1) * tensor.strides[i]);
      }
      if (last * dtype_info(tensor.type).bytes > file.storages.at(tensor.storage).bytes) __builtin_trap();
    }
    write_pickle(file);
  });
}
