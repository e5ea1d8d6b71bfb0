// Tests that leave something behind, for leftovers_test.py.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace {

TEST(Leaves, Nothing) {
  std::thread([] {}).join();
  const auto child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  ::close(::open("/dev/null", O_RDONLY));
  const auto name = "/leaves-nothing-" + std::to_string(::getpid());
  ::close(::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600));
  ::shm_unlink(name.c_str());
  const auto folder = std::filesystem::temp_directory_path() / "leaves-nothing";
  std::filesystem::create_directory(folder);
  std::filesystem::remove(folder);
}

TEST(Leaves, Folder) {
  EXPECT_TRUE(std::filesystem::create_directory(std::filesystem::temp_directory_path() / "leaves-folder"));
}

TEST(Leaves, Thread) {
  std::thread([] {
    ::prctl(PR_SET_NAME, "forgotten");
    ::pause();
  }).detach();
}

TEST(Leaves, Process) {
  const auto parent = ::getpid();
  if (::fork() != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) ::pause();
  ::_exit(0);
}

TEST(Leaves, DeadProcess) {
  if (::fork() == 0) ::_exit(0);
}

TEST(Leaves, File) { EXPECT_GE(::open("/dev/zero", O_RDONLY), 0); }

TEST(Leaves, Segment) {
  const auto name = "/leaves-segment-" + std::to_string(::getpid());
  ::close(::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600));
  std::printf("segment %s\n", name.c_str());
}

}  // namespace
