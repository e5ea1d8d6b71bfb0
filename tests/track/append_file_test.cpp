#include "track/append_file.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "run_files.h"

namespace muster::track {
namespace {

using muster::testing::thrown;
using muster::testing::thrown_id;

/// Runs f in a child whose files may have at most `bytes` bytes, as if the disk were full. Returns its exit code.
template <class F>
int with_largest_file(rlim_t bytes, F&& f) {
  const auto child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::_exit(f());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AppendFile, WritesWholeRecordsAtAFlush) {
  ScratchFolder folder;
  AppendFile file(folder / "a");
  file.add("one\n");
  EXPECT_EQ(read_text(folder / "a"), "");
  EXPECT_EQ(file.size(), 4u);
  file.flush();
  file.add("two\n");
  file.flush();
  EXPECT_EQ(read_text(folder / "a"), "one\ntwo\n");
}

TEST(AppendFile, ContinuesAFileAfterItsLastWholeRecord) {
  ScratchFolder folder;
  write_text(folder / "a", "one\ntwo\na long record that was cut off");
  AppendFile file(folder / "a", whole_lines);
  file.add("3\n");
  file.flush();
  EXPECT_EQ(read_text(folder / "a"), "one\ntwo\n3\n");
}

TEST(AppendFile, AFullDiskLeavesWholeRecordsAndLaterFlushesWriteTheRest) {
  ScratchFolder folder;
  const auto fill = [&] {
    AppendFile file(folder / "a");
    for (int i = 0; i < 10; ++i) file.add("123456789\n");
    const auto words = thrown([&] { file.flush(); });
    if (words.find("MU422: ") != 0 || words.find("training goes on") == std::string::npos) return 1;
    if (read_text(folder / "a").size() != 50) return 2;
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &none);
    file.add("the last\n");
    file.flush();
    return 0;
  };
  EXPECT_EQ(with_largest_file(55, fill), 0);
  EXPECT_EQ(read_text(folder / "a").size(), 109u);
  EXPECT_TRUE(read_text(folder / "a").ends_with("123456789\nthe last\n"));
}

TEST(AppendFile, KeepsFewMegabytesForADiskThatIsFull) {
  ScratchFolder folder;
  const auto fill = [&] {
    AppendFile file(folder / "a");
    const std::string record(1 << 20, 'x');
    for (int i = 0; i < 4; ++i) file.add(record);
    if (thrown_id([&] { file.add(record); }) != "MU422") return 1;
    return file.size() == 4 << 20 ? 0 : 2;
  };
  EXPECT_EQ(with_largest_file(1000, fill), 0);
}

TEST(AppendFile, ReadsWholeLinesAndStartsAnew) {
  ScratchFolder folder;
  AppendFile file(folder / "a");
  const std::string long_line(100, 'x');
  file.add("one\ntwo\n" + long_line + "\nfour\nhalf");
  EXPECT_EQ(file.read_lines(0, 100), "");
  file.flush();
  EXPECT_EQ(file.read_lines(0, 5), "one\n");
  EXPECT_EQ(file.read_lines(4, 4), "two\n");
  EXPECT_TRUE(file.read_lines(8, 4).starts_with(long_line + "\n"));  // longer than a piece
  EXPECT_EQ(file.read_lines(109, 1000), "four\n");
  EXPECT_EQ(file.read_lines(114, 1000), "");
  EXPECT_EQ(file.read_lines(5000, 1000), "");
  file.clear();
  EXPECT_EQ(file.written(), 0u);
  file.add("five\n");
  file.flush();
  EXPECT_EQ(read_text(folder / "a"), "five\n");
}

TEST(AppendFile, RefusesAFolderInItsPlace) {
  ScratchFolder folder;
  EXPECT_EQ(thrown_id([&] { AppendFile file(folder.path()); }), "MU421");
}

TEST(AppendFile, RefusesAFileThatAnotherRunWrites) {
  ScratchFolder folder;
  AppendFile file(folder / "a");
  const auto words = thrown([&] { AppendFile other(folder / "a"); });
  EXPECT_NE(words.find("another run writes it"), std::string::npos) << words;
}

TEST(ReplaceFile, PutsANewFileInPlaceOfTheOld) {
  ScratchFolder folder;
  replace_file(folder / "a", "a long text");
  replace_file(folder / "a", "short");
  EXPECT_EQ(read_text(folder / "a"), "short");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"a"});
  EXPECT_EQ(thrown_id([&] { replace_file(folder / "none/a", "x"); }), "MU422");
}

}  // namespace
}  // namespace muster::track
