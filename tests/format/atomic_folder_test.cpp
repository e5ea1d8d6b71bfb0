#include "format/atomic_folder.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "checks.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;

bool is_word(std::string_view name) { return name == "word"; }

void put_folder(const fs::path& path, std::string_view word, Durability durability = Durability::none) {
  AtomicFolder folder(path, durability, is_word);
  checks::write(folder.part() / "word", word);
  folder.publish();
}

TEST(AtomicFolder, AppearsWhole) {
  ScratchFolder scratch;
  for (const Durability durability : {Durability::none, Durability::file, Durability::full}) {
    const std::string word = std::to_string(static_cast<int>(durability));
    put_folder(scratch / "a/x", word, durability);
    EXPECT_EQ(checks::read(scratch / "a/x/word"), word);
    EXPECT_EQ(checks::entries(scratch / "a"), 1u);
  }
}

TEST(AtomicFolder, KeepsTheModeOfWhatItReplaces) {
  ScratchFolder scratch;
  put_folder(scratch / "x", "former");
  ::chmod((scratch / "x").c_str(), 0700);
  AtomicFolder folder(scratch / "x", Durability::none, is_word);
  struct stat status {};
  ASSERT_EQ(::stat(folder.part().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u) << "while it is written";
  folder.publish();
  ASSERT_EQ(::stat((scratch / "x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST(AtomicFolder, LeavesTheFormerIfItIsNotPublished) {
  ScratchFolder scratch;
  put_folder(scratch / "x", "former");
  {
    AtomicFolder folder(scratch / "x", Durability::none, is_word);
    checks::write(folder.part() / "word", "new");
    EXPECT_EQ(folder.path(), scratch / "x");
    EXPECT_EQ(checks::read(scratch / "x/word"), "former");
  }
  EXPECT_EQ(checks::read(scratch / "x/word"), "former");
  EXPECT_EQ(checks::entries(scratch.path()), 1u);
}

TEST(AtomicFolder, RemovesWhatTheDeadLeftAndNothingElse) {
  ScratchFolder scratch;
  fs::create_directories(scratch / ".x.abcd1234.partial/word");
  for (const char* name :
       {".x.y.abcd1234.partial", ".y.abcd1234.partial", ".x.abcd123.partial", "x.abcd1234.partial", ".x.notes"})
    fs::create_directory(scratch / name);
  put_folder(scratch / "x", "new");
  EXPECT_FALSE(fs::exists(scratch / ".x.abcd1234.partial"));
  EXPECT_EQ(checks::entries(scratch.path()), 6u);
}

TEST(AtomicFolder, FindsAndRestoresAFormerThatWasSetAside) {
  ScratchFolder scratch;
  put_folder(scratch / "kept", "former");
  fs::rename(scratch / "kept", scratch / ".x.abcd1234.former");
  EXPECT_EQ(find_folder(scratch / "x"), scratch / ".x.abcd1234.former");
  { const AtomicFolder folder(scratch / "x", Durability::none, is_word); }
  EXPECT_EQ(find_folder(scratch / "x"), scratch / "x");
  EXPECT_EQ(checks::read(scratch / "x/word"), "former");
  fs::create_directory(scratch / ".x.abcd1234.former");
  put_folder(scratch / "x", "new");
  EXPECT_EQ(checks::entries(scratch.path()), 1u) << "one that is not needed goes";
}

TEST(AtomicFolder, DoesNotReplaceWhatIsNoneOfItsKind) {
  ScratchFolder scratch;
  checks::write(scratch / "file", "mine");
  expect_error<CheckpointError>("MU212", "is a file", [&] { put_folder(scratch / "file", "new"); });
  put_folder(scratch / "x", "former");
  checks::write(scratch / "x/notes", "mine");
  expect_error<CheckpointError>("MU212", "files of others (notes)", [&] { put_folder(scratch / "x", "new"); });
  EXPECT_EQ(checks::entries(scratch.path()), 2u);
  expect_error<CheckpointError>("MU202", "no name of its own", [&] { put_folder("/", "new"); });
}

TEST(FolderLock, IsForOneAtATimeAndDiesWithItsOwner) {
  ScratchFolder scratch;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(scratch / "x");
    if (::write(ready[1], "r", 1) == 1) ::pause();
    ::_exit(1);
  }
  char word = 0;
  ASSERT_EQ(::read(ready[0], &word, 1), 1);
  expect_error<CheckpointError>("MU211", "is being written by process " + std::to_string(child) + " on ",
                                [&] { const FolderLock lock(scratch / "x"); });
  { const FolderLock other(scratch / "y"); }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  { const FolderLock lock(scratch / "x"); }
  EXPECT_EQ(checks::entries(scratch.path()), 0u) << "the mark goes with the lock";
}

TEST(RemoveFolder, TakesTheNameAwayFirst) {
  ScratchFolder scratch;
  put_folder(scratch / "x", "word");
  remove_folder(scratch / "x");
  remove_folder(scratch / "never there");
  EXPECT_EQ(checks::entries(scratch.path()), 0u);
}

}  // namespace
}  // namespace muster::format
