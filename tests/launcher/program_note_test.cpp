#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "launcher/fork_server.h"
#include "launcher/process.h"

namespace muster::launcher {
namespace {

const std::string kProgram = MUSTER_BINARY_DIR "/tests/launcher_forked";

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ProgramNote, StandsInProgramsThatLinkMuster) {
  for (const auto& name : {"launcher_forked", "launcher_forked_shared", "launcher_rank"})
    EXPECT_TRUE(can_be_fork_server(std::string(MUSTER_BINARY_DIR "/tests/") + name)) << name;
  EXPECT_FALSE(can_be_fork_server("/bin/sh"));
}

TEST(ProgramNote, WhatIsNoProgramHasNone) {
  testing::Folder folder;
  EXPECT_FALSE(can_be_fork_server(folder.path()));
  EXPECT_FALSE(can_be_fork_server(folder.path() + "/none"));
  EXPECT_FALSE(can_be_fork_server(folder.write("empty", "", 0755)));
  EXPECT_FALSE(can_be_fork_server(folder.write("script", "#!/bin/sh\n", 0755)));
  const auto fifo = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0700), 0);
  EXPECT_FALSE(can_be_fork_server(fifo));
}

TEST(ProgramNote, AnotherVersionOrOtherRightsAreRefused) {
  testing::Folder folder;
  const auto program = bytes_of(kProgram);
  const std::string note("Muster\0\0\1\0\0\0", 12);
  const auto at = program.find(note);
  ASSERT_NE(at, std::string::npos);
  EXPECT_TRUE(can_be_fork_server(folder.write("same", program, 0755)));
  auto other = program;
  other[at + 8] = 2;
  EXPECT_FALSE(can_be_fork_server(folder.write("version", other, 0755)));
  EXPECT_FALSE(can_be_fork_server(folder.write("rights", program, 04755)));
}

TEST(ProgramNote, ADamagedProgramIsReadWithinItsBounds) {
  testing::Folder folder;
  const auto program = bytes_of(kProgram).substr(0, 4096);
  for (std::size_t size = 0; size < program.size(); size += 97)
    can_be_fork_server(folder.write("cut", program.substr(0, size), 0755));
  for (std::size_t at = 16; at < 1024; ++at) {
    auto damaged = program;
    damaged[at] = '\xff';
    can_be_fork_server(folder.write("damaged", damaged, 0755));
  }
}

}  // namespace
}  // namespace muster::launcher
