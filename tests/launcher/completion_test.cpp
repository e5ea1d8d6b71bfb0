#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/config_calls.h"
#include "muster/launcher/detail/option_tables.h"
#include "muster/runtime/detail/launch_check.h"

namespace muster::launcher::testing {
namespace {

std::vector<std::string> every_flag() {
  std::vector<std::string> flags{"--config"};
  for (const auto& option : run_option_table().descriptions()) flags.push_back(option.flag());
  const auto count = flags.size();
  for (const auto& option : runtime::program_options()) {
    const auto flag = option.flag();
    // num_nodes of a program is the launcher's nodes.
    if (!option.code_only && option.name != "num_nodes" &&
        std::find(flags.begin(), flags.begin() + static_cast<std::ptrdiff_t>(count), flag) ==
            flags.begin() + static_cast<std::ptrdiff_t>(count))
      flags.push_back(flag);
  }
  return flags;
}

/// The flag, and not the beginning of a longer one.
bool stands_in(const std::string& text, const std::string& flag) {
  for (size_t at = 0; (at = text.find(flag, at)) != std::string::npos; at += flag.size()) {
    const char next = at + flag.size() < text.size() ? text[at + flag.size()] : ' ';
    if (!std::isalnum(static_cast<unsigned char>(next)) && next != '-' && next != '_') return true;
  }
  return false;
}

std::string from(const std::string& text, const std::string& begin) {
  const auto at = text.find(begin);
  return at == std::string::npos ? "" : text.substr(at);
}

TEST(Completion, EveryOptionStandsInEachShell) {
  const UserFolders user;
  const auto bash = user.call({"completion", "bash"}).out, zsh = user.call({"completion", "zsh"}).out,
             fish = user.call({"completion", "fish"}).out;
  for (const auto& flag : every_flag()) {
    EXPECT_TRUE(stands_in(from(bash, "\n    run)").substr(0, from(bash, "\n    run)").find(";;")), flag)) << flag;
    EXPECT_TRUE(stands_in(from(bash, "\n    launch)"), flag)) << flag;
    EXPECT_TRUE(stands_in(from(zsh, "\n    run)"), flag)) << flag;
    EXPECT_TRUE(stands_in(fish, "from run' -l " + flag.substr(2))) << flag;
  }
  for (const auto* flag : {"--num-processes", "--fsdp-sharding-strategy", "--megatron-lm-tp-degree"}) {
    EXPECT_TRUE(stands_in(from(bash, "\n    launch)"), flag)) << flag;
    EXPECT_TRUE(stands_in(from(zsh, "\n    launch)"), flag)) << flag;
    EXPECT_TRUE(stands_in(fish, "from launch' -l " + std::string(flag).substr(2))) << flag;
  }
  EXPECT_NE(bash.find("explain) words=\"MU"), std::string::npos);
  EXPECT_NE(bash.find("track) words=\"upload --timeout --tracking-uri --help\""), std::string::npos);
  EXPECT_TRUE(stands_in(from(zsh, "\n    track)"), "--tracking-uri"));
  EXPECT_TRUE(stands_in(fish, "from track' -l tracking-uri"));
}

TEST(Completion, EveryOptionStandsInTheManualPage) {
  const UserFolders user;
  for (const auto* command : {"run", "launch"}) {
    const auto page = user.call({"man", command}).out;
    for (auto flag : every_flag()) {
      for (size_t at = 0; (at = flag.find('-', at)) != std::string::npos; at += 2) flag.insert(at, "\\");
      EXPECT_NE(page.find("\\fB" + flag + "\\fR"), std::string::npos) << command << " " << flag;
    }
  }
  const auto page = user.call({"man", "track"}).out;
  EXPECT_NE(page.find("\\fB\\-\\-tracking\\-uri\\fR"), std::string::npos) << page;
  EXPECT_NE(page.find(".SH WORDS\nupload"), std::string::npos) << page;
  EXPECT_NE(user.call({"man"}).out.find("\\fBmuster config\\fR"), std::string::npos);
  EXPECT_NE(user.call({"man", "wun"}).error.find("MU006"), std::string::npos);
  EXPECT_NE(user.call({"completion", "tcsh"}).error.find("bash, zsh and fish"), std::string::npos);
}

TEST(Completion, TheReferenceOfAcceleratesNamesIsTheTable) {
  const UserFolders user;
  EXPECT_NE(read_file(MUSTER_SOURCE_DIR "/docs/reference/launch.md").find(user.call({"options", "launch"}).out),
            std::string::npos)
      << "replace the table in docs/reference/launch.md by the output of `muster options launch`";
}

TEST(Completion, BashReadsItAndCompletes) {
  const UserFolders user;
  const auto completed = [&](const std::string& words, int current) {
    Process bash({"bash", "-c",
                  "source <('" MUSTER_BINARY_DIR "/bin/muster' completion bash); COMP_WORDS=(" + words +
                      "); COMP_CWORD=" + std::to_string(current) + "; _muster; echo \"${COMPREPLY[@]}\""});
    EXPECT_EQ(bash.wait(), 0) << bash.error();
    return bash.out();
  };
  EXPECT_EQ(completed("muster lau", 1), "launch\n");
  EXPECT_EQ(completed("muster run --node-r", 2), "--node-rank\n");
  EXPECT_EQ(completed("muster launch --num-proc", 2), "--num-processes\n");
}

}  // namespace
}  // namespace muster::launcher::testing
