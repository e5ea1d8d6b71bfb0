#include "format/input_file.h"

#include <sys/stat.h>

#include <gtest/gtest.h>

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
  expect_error<CheckpointError>("MU200", "cannot be opened for reading (No such file",
                                [&] { InputFile(folder / "none"); });
  expect_error<CheckpointError>("MU200", "is a folder", [&] { InputFile(folder.path()); });
  expect_error<CheckpointError>("MU200", "is not a regular file", [&] { InputFile(folder / "pipe"); });
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
  const MappedFile memory(InputFile(folder / "x"), MappedFile::Access::copy_on_write);
  memory.data()[0] = std::byte{'X'};
  EXPECT_EQ(checks::read(folder / "x"), "0123456789");
  std::filesystem::remove(folder / "x");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.data()), memory.size()), "X123456789");
}

TEST(MappedFile, CopiesAnyPart) {
  ScratchFolder folder;
  std::string text(300'000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 24);
  checks::write(folder / "x", text);
  const InputFile file(folder / "x");
  const MappedFile memory(file, MappedFile::Access::read);
  for (const std::size_t offset : {0, 1, 63, 4095, 4096, 12345})
    for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 200, 4097, 250'000})
      for (const std::size_t shift : {0, 1, 63}) {
        std::string to(bytes + 128, '#');
        ASSERT_TRUE(memory.copy_to(file, to.data() + shift, offset, bytes)) << "what was just written is not in memory";
        ASSERT_EQ(to, std::string(shift, '#') + text.substr(offset, bytes) + std::string(128 - shift, '#'));
      }
}

TEST(MappedFile, WhatIsNotInMemoryIsToBeRead) {
  ScratchFolder folder;
  checks::write(folder / "x", std::string(100'000, 'x'));
  const InputFile file(folder / "x");
  const MappedFile memory(file, MappedFile::Access::read);
  std::filesystem::resize_file(folder / "x", 10'000);
  std::string to(100'000, '#');
  EXPECT_TRUE(memory.is_resident(file, 0, 10'000));
  EXPECT_FALSE(memory.is_resident(file, 5'000, 50'000)) << "it was shortened";
  EXPECT_FALSE(memory.copy_to(file, to.data(), 0, to.size()));
  EXPECT_EQ(to, std::string(100'000, '#'));
}

}  // namespace
}  // namespace muster::format
