#include <gtest/gtest.h>

#include "checks.h"
#include "format/python_file.h"
#include "format/zip.h"
#include "muster/base/error.h"
#include "python_values.h"

namespace muster::format {
namespace {

using checks::described;
using checks::ScratchFolder;

/// Reads a file, writes it again, and reads that.
PythonFile rewritten(const std::string& name, const std::filesystem::path& path) {
  const std::string bytes = checks::read(checks::python_file(name));
  const PythonFile content = read_python_file(checks::in_memory(bytes, name));
  AtomicFile file(path, Durability::none);
  write_python_file(file, content, "again", [&](std::size_t storage) {
    return std::string_view(bytes).substr(content.storages[storage].offset, content.storages[storage].bytes);
  });
  file.publish();
  const PythonFile again = read_python_file(format::InputFile(path));
  EXPECT_EQ(described(again.value, again), described(content.value, content));
  return again;
}

TEST(PythonWriterTest, EverythingComesBack) {
  ScratchFolder folder;
  for (const char* name : {"zip.pt", "legacy.pt", "new_dtypes.pt", "cpp_module.pt"}) {
    const PythonFile again = rewritten(name, folder / "x.pt");
    const std::string bytes = checks::read(folder / "x.pt");
    for (const auto& storage : again.storages) {
      EXPECT_EQ(storage.offset % 64, 0u);
      EXPECT_EQ(crc32(std::string_view(bytes).substr(storage.offset, storage.bytes)), storage.crc);
    }
  }
}

TEST(PythonWriterTest, ViewsOfDifferentTypesNameTheirType) {
  PythonFile content;
  content.storages.push_back({.key = "0", .location = "cpu", .bytes = 8});
  content.tensors.push_back({.storage = 0, .type = ScalarType::float32, .shape = {2}, .strides = {1}});
  content.tensors.push_back({.storage = 0, .type = ScalarType::uint8, .shape = {8}, .strides = {1}});
  content.value.kind = PythonValue::Kind::list;
  content.value.items = {PythonValue::of_tensor(0), PythonValue::of_tensor(1)};
  const std::string pickle = write_pickle(content);
  EXPECT_NE(pickle.find("_rebuild_tensor_v3"), std::string::npos);
  EXPECT_EQ(pickle.find("_rebuild_tensor_v2"), std::string::npos);
  EXPECT_NE(pickle.find("torch\nuint8\n"), std::string::npos);
  content.tensors.pop_back();
  content.value.items.pop_back();
  EXPECT_NE(write_pickle(content).find("FloatStorage"), std::string::npos);
}

TEST(PythonWriterTest, TextThatIsNoUtf8BecomesBytes) {
  PythonFile content;
  for (const char* text : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    content.value = PythonValue::of_text(text);
    EXPECT_NE(write_pickle(content).find("_codecs"), std::string::npos);
  }
  content.value = PythonValue::of_text("\xf0\x9f\x98\x80 \xe2\x82\xac");
  EXPECT_EQ(write_pickle(content).find("_codecs"), std::string::npos);
}

}  // namespace
}  // namespace muster::format
