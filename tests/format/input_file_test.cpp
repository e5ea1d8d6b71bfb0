#include "muster/format/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checks.h"

namespace muster::format {
namespace {

using checks::expect_error;
using checks::ScratchFolder;

TEST(InputFile, ReadsAnywhere) {
  ScratchFolder folder;
  checks::write(folder / "x", "0123456789");
  const InputFile file(folder / "x");
  EXPECT_EQ(file.size(), 10u);
  char bytes[3];
  file.read_at(4, bytes, 3);
  EXPECT_EQ(std::string(bytes, 3), "456");
  EXPECT_EQ(file.read_text(10), "0123456789");
}

TEST(InputFile, RefusesWhatIsNoReadableFile) {
  ScratchFolder folder;
  ::mkfifo((folder / "pipe").c_str(), 0600);
  expect_error<CheckpointError>("MU200", "cannot be opened for reading (No such file", [&] { InputFile(folder / "none"); });
  expect_error<CheckpointError>("MU200", "is a folder", [&] { InputFile(folder.path()); });
  expect_error<CheckpointError>("MU200", "is no regular file", [&] { InputFile(folder / "pipe"); });
}

TEST(InputFile, RefusesAFileThatWasShortened) {
  ScratchFolder folder;
  checks::write(folder / "x", "0123456789");
  const InputFile file(folder / "x");
  std::filesystem::resize_file(folder / "x", 5);
  char bytes[10];
  expect_error<CheckpointError>("MU200", "ends at byte 5: it was shortened", [&] { file.read_at(0, bytes, 10); });
  expect_error<CheckpointError>("MU200", "more than the limit of 9", [&] { (void)file.read_text(9); });
}

TEST(InputFile, HeaderIsReadWithoutTheData) {
  ScratchFolder folder;
  checks::write(folder / "x", checks::file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab"));
  EXPECT_EQ(read_header(InputFile(folder / "x")).tensors.at(0).name, "a");
  checks::write(folder / "short", "abc");
  expect_error<CheckpointError>("MU201", "fewer than the 8", [&] { read_header(InputFile(folder / "short")); });
}

TEST(MappedFile, IsPrivateAndOutlivesTheFile) {
  ScratchFolder folder;
  checks::write(folder / "x", "0123456789");
  const MappedFile memory{InputFile(folder / "x")};
  memory.data()[0] = std::byte{'X'};
  EXPECT_EQ(checks::read(folder / "x"), "0123456789");
  std::filesystem::remove(folder / "x");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.data()), memory.size()), "X123456789");
}

}  // namespace
}  // namespace muster::format
