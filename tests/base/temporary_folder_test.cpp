#include "muster/base/temporary_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
constexpr uid_t kAnother = 65534;  // nobody

/// A folder for temporary files of a test's own, open to all as /tmp is.
class TemporaryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* variable = std::getenv("TMPDIR")) before_ = variable;
    ::unsetenv("TMPDIR");  // the test program's own folder lets no other user in
    folder_ = new_temporary_folder("muster-folder-test");
    ::chmod(folder_.c_str(), 01777);
    ::setenv("TMPDIR", folder_.c_str(), 1);
  }

  void TearDown() override {
    before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
    fs::remove_all(folder_);
  }

  /// What another user does in there; false if this test may not become another.
  static bool as_another(const std::function<bool()>& body) {
    if (::geteuid() != 0) return false;
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::setuid(kAnother) == 0 && body() ? 0 : 1);
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "the other user could not do it";
    return true;
  }

  fs::path named(const std::string& end) const { return folder_ / ("muster-" + std::to_string(::geteuid()) + end); }

  fs::path folder_;
  std::string before_;
};

TEST_F(TemporaryFolder, IsOfThisUserAloneAndTheSameForAll) {
  const auto path = private_folder();
  EXPECT_EQ(path, named(""));
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(private_folder(), path);
}

TEST_F(TemporaryFolder, PassesOverWhatIsALinkAFileOrOpenToOthers) {
  fs::create_directory(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", named(""));
  ::close(::open(named("-1").c_str(), O_CREAT | O_WRONLY, 0600));
  ::mkdir(named("-2").c_str(), 0700);
  ::chmod(named("-2").c_str(), 0750);
  EXPECT_EQ(private_folder(), named("-3"));
}

TEST_F(TemporaryFolder, PassesOverWhatAnotherUserPlanted) {
  const auto plant = [first = named(""), second = named("-1"), third = named("-2")] {
    return ::mkdir(first.c_str(), 0700) == 0 && ::symlink("/etc", second.c_str()) == 0 &&
           ::open(third.c_str(), O_CREAT | O_WRONLY, 0666) >= 0;
  };
  if (!as_another(plant)) GTEST_SKIP() << "only root can act as another user";
  EXPECT_EQ(private_folder(), named("-3"));
}

TEST_F(TemporaryFolder, SaysWhenAllNamesAreTaken) {
  for (int i = 0; i < 100; ++i) fs::create_directory_symlink("/", named(i == 0 ? "" : "-" + std::to_string(i)));
  try {
    ADD_FAILURE() << private_folder();
  } catch (const LaunchError& error) {
    EXPECT_EQ(error.id(), "MU069");
    EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos) << error.what();
  }
}

TEST_F(TemporaryFolder, NewOnesHaveNamesThatNobodyForesees) {
  const auto one = new_temporary_folder("x"), two = new_temporary_folder("x");
  EXPECT_NE(one, two);
  struct stat status {};
  ASSERT_EQ(::stat(one.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(TemporaryFolder, AMissingTemporaryFolderIsNamed) {
  ::setenv("TMPDIR", "/nowhere", 1);
  for (auto ask : {+[] { return private_folder(); }, +[] { return new_temporary_folder("x"); }}) try {
      ADD_FAILURE() << ask();
    } catch (const LaunchError& error) {
      EXPECT_EQ(error.id(), "MU069");
      EXPECT_NE(std::string(error.what()).find("/nowhere"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace muster
