#include "format/atomic_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checks.h"

namespace muster::format {
namespace {

using checks::expect_error;
using checks::ScratchFolder;

void put(const std::filesystem::path& path, std::string_view bytes, Durability durability = Durability::none) {
  AtomicFile file(path, durability);
  file.write(std::array{bytes});
  file.publish();
}

TEST(AtomicFile, AppearsWithAllItsBytes) {
  ScratchFolder folder;
  for (const Durability durability : {Durability::none, Durability::file, Durability::full}) {
    AtomicFile file(folder / "x", durability);
    file.reserve(11);
    file.write(std::array<std::string_view, 4>{"hello", "", " ", ""});
    file.write(std::array<std::string_view, 1>{"world"});
    file.write({});
    file.publish();
    EXPECT_EQ(checks::read(folder / "x"), "hello world");
    EXPECT_EQ(checks::entries(folder.path()), 1u);
  }
}

TEST(AtomicFile, WritesMoreThanOneCallTakes) {
  ScratchFolder folder;
  std::string whole;
  std::vector<std::string> pieces;
  for (int i = 0; i < 5000; ++i)
    whole += pieces.emplace_back(static_cast<std::size_t>(i % 7), static_cast<char>('a' + i % 26));
  AtomicFile file(folder / "x", Durability::none);
  file.write(std::vector<std::string_view>(pieces.begin(), pieces.end()));
  file.publish();
  EXPECT_EQ(checks::read(folder / "x"), whole);
}

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777;
}

std::filesystem::path part_in(const ScratchFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".partial") return entry.path();
  return {};
}

TEST(AtomicFile, KeepsTheModeOfWhatItReplaces) {
  ScratchFolder folder;
  for (const mode_t mode : {0600u, 0640u, 0444u, 0777u}) {
    put(folder / "x", "secret");
    ::chmod((folder / "x").c_str(), mode);
    {
      AtomicFile file(folder / "x", Durability::none);
      EXPECT_EQ(mode_of(part_in(folder)), mode) << "while it is written";
    }
    put(folder / "x", "new secret");
    EXPECT_EQ(mode_of(folder / "x"), mode);
    EXPECT_EQ(checks::read(folder / "x"), "new secret");
  }
}

TEST(AtomicFile, ANewOneHasTheModeOfTheUmask) {
  ScratchFolder folder;
  const mode_t before = ::umask(027);
  put(folder / "x", "new");
  ::umask(before);
  EXPECT_EQ(mode_of(folder / "x"), 0640u);
}

TEST(AtomicFile, KeepsTheOwnerOfWhatRootReplaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ScratchFolder folder;
  put(folder / "x", "hers");
  ASSERT_EQ(::chown((folder / "x").c_str(), 65534, 65534), 0);
  ::chmod((folder / "x").c_str(), 0640);
  put(folder / "x", "still hers");
  struct stat status {};
  ASSERT_EQ(::stat((folder / "x").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 65534u);
  EXPECT_EQ(status.st_gid, 65534u);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(AtomicFile, LeavesTheFormerFileIfItIsNotPublished) {
  ScratchFolder folder;
  put(folder / "x", "former");
  {
    AtomicFile file(folder / "x", Durability::none);
    file.write(std::array<std::string_view, 1>{"half of a new"});
    EXPECT_EQ(checks::entries(folder.path()), 2u);
  }
  EXPECT_EQ(checks::read(folder / "x"), "former");
  EXPECT_EQ(checks::entries(folder.path()), 1u);
}

TEST(AtomicFile, RefusesAFolderThatIsNotThere) {
  ScratchFolder folder;
  expect_error<CheckpointError>("MU202", "nothing can be written in its folder (No such file",
                                [&] { put(folder / "no/x", "a"); });
  expect_error<CheckpointError>("MU202", "a folder has that name", [&] { put(folder.path(), "a"); });
  expect_error<CheckpointError>("MU202", "no file name", [&] { put("", "a"); });
}

/// Runs `action` in a process of its own and returns its exit code.
template <class Action>
int in_a_child(Action&& action) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(action());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// As in_a_child, where files may not grow beyond `limit` bytes.
template <class Action>
int with_file_limit(rlim_t limit, Action&& action) {
  return in_a_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit bound{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &bound);
    return action();
  });
}

int exit_code_of_write(const std::filesystem::path& path, bool reserve) {
  try {
    AtomicFile file(path, Durability::none);
    const std::string bytes(100'000, 'n');
    if (reserve) file.reserve(bytes.size());
    file.write(std::array{std::string_view(bytes)});
    file.publish();
  } catch (const CheckpointError& error) {
    return error.id() == "MU202" ? 20 : 21;
  }
  return 0;
}

TEST(AtomicFile, RefusesAFolderThatMayNotBeWritten) {
  ScratchFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const int code = in_a_child([&] {
    // Root may write everywhere, so the child becomes somebody who may not.
    if (::geteuid() == 0 && ::seteuid(65534) != 0) return 1;
    return exit_code_of_write(folder / "x", false);
  });
  EXPECT_EQ(code, 20);
}

TEST(AtomicFile, AWriteThatFailsLeavesTheFormerFile) {
  ScratchFolder folder;
  put(folder / "x", "former");
  for (const bool reserve : {false, true}) {
    EXPECT_EQ(with_file_limit(50'000, [&] { return exit_code_of_write(folder / "x", reserve); }), 20);
    EXPECT_EQ(checks::read(folder / "x"), "former");
    EXPECT_EQ(checks::entries(folder.path()), 1u);
    EXPECT_EQ(with_file_limit(200'000, [&] { return exit_code_of_write(folder / "y", reserve); }), 0);
    std::filesystem::remove(folder / "y");
  }
}

TEST(AtomicFile, RemovesPartsOfWritersThatDied) {
  ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder / "x", Durability::none);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(checks::entries(folder.path()), 1u);
  AtomicFile living(folder / "x", Durability::none);
  EXPECT_EQ(checks::entries(folder.path()), 1u);
  put(folder / "x", "another writer");
  EXPECT_EQ(checks::entries(folder.path()), 2u) << "the living writer's part must stay";
  living.write(std::array<std::string_view, 1>{"last"});
  living.publish();
  EXPECT_EQ(checks::read(folder / "x"), "last");
}

TEST(AtomicFile, WritersOfOneNameLeaveEachOthersParts) {
  ScratchFolder folder;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer)
    writers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) EXPECT_NO_THROW(put(folder / "x", "bytes"));
    });
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(checks::read(folder / "x"), "bytes");
  EXPECT_EQ(checks::entries(folder.path()), 1u);
}

TEST(AtomicFile, LeavesPartsOfOtherNames) {
  ScratchFolder folder;
  checks::write(folder / ".y.abcdefgh.partial", "part");
  checks::write(folder / ".x.notes", "mine");
  put(folder / "x", "a");
  EXPECT_EQ(checks::entries(folder.path()), 3u);
}

}  // namespace
}  // namespace muster::format
