#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/config_calls.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"

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

std::string part(const std::string& text, const std::string& begin, const std::string& end) {
  const auto rest = from(text, begin);
  return rest.empty() ? "" : rest.substr(0, rest.find(end, begin.size()));
}

std::string in_troff(std::string flag) {
  for (size_t at = 0; (at = flag.find('-', at)) != std::string::npos; at += 2) flag.insert(at, "\\");
  return flag;
}

std::vector<std::string> every_command(const UserFolders& user) {
  std::istringstream lines(part(user.call({"--help"}).out, "Commands (", "\nOptions:"));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("  ")) names.push_back(line.substr(2, line.find(' ', 2) - 2));
  EXPECT_GT(names.size(), 10u);
  return names;
}

/// The spellings of each flag, as the help shows them.
std::vector<std::vector<std::string>> flags_in(const std::string& help) {
  std::vector<std::vector<std::string>> flags;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -") || line.starts_with("  -h,--help")) continue;
    std::istringstream words(line.substr(2, line.find(' ', 2) - 2));
    auto& spellings = flags.emplace_back();
    for (std::string word; std::getline(words, word, ',');) spellings.push_back(word.substr(0, word.find('{')));
  }
  return flags;
}

/// Those of all parts of a command.
std::vector<std::vector<std::string>> flags_of(const UserFolders& user, const std::string& command) {
  using Words = std::vector<std::string>;
  const std::map<std::string, std::vector<Words>> parts{
      {"config", {{"--help"}, {"show", "--help"}, {"update", "--help"}}},
      // The help shows a group of Accelerate's flags where one of them is named.
      {"launch", {{"--help", "use_parallelism_config", "use_fsdp", "use_deepspeed", "use_megatron_lm", "fp8", "aws"}}},
      {"submit", {{"slurm", "--help"}, {"kubernetes", "--help"}, {"sagemaker", "--help"}}},
      {"track", {{"upload", "--help"}}}};
  std::vector<Words> flags;
  const auto found = parts.find(command);
  for (Words words : found == parts.end() ? std::vector<Words>{{"--help"}} : found->second) {
    words.insert(words.begin(), command);
    for (auto& flag : flags_in(user.call(words).out)) flags.push_back(std::move(flag));
  }
  return flags;
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
  EXPECT_NE(bash.find("explain) words=\"MU"), std::string::npos);
}

TEST(Completion, EveryFlagOfEveryHelpStandsInEachShellAndManualPage) {
  const UserFolders user;
  const auto bash = user.call({"completion", "bash"}).out, zsh = user.call({"completion", "zsh"}).out,
             fish = user.call({"completion", "fish"}).out;
  for (const auto& command : every_command(user)) {
    const auto page = user.call({"man", command}).out;
    std::set<std::string> known{"--help"};
    for (const auto& spellings : flags_of(user, command)) {
      known.insert(spellings.begin(), spellings.end());
      for (const auto& word : spellings)
        EXPECT_TRUE(page.find("\\fB" + in_troff(word) + "\\fR") != std::string::npos) << command << " " << word;
      auto flag = spellings.front();
      std::replace(flag.begin(), flag.end(), '_', '-');
      EXPECT_TRUE(stands_in(part(bash, "\n    " + command + ") words=", ";;"), flag)) << command << " " << flag;
      EXPECT_TRUE(stands_in(part(zsh, "\n    " + command + ")\n", ";;"), flag)) << command << " " << flag;
      EXPECT_TRUE(stands_in(fish, "from " + command + "' -l " + flag.substr(2))) << command << " " << flag;
    }
    if (command == "launch" || command == "config") continue;  // their help leaves out the options of programs
    std::istringstream words(part(bash, "\n    " + command + ") words=\"", "\""));
    for (std::string word; words >> word;)
      EXPECT_TRUE(!word.starts_with("--") || known.contains(word)) << command << " has no " << word;
  }
}

TEST(Completion, EveryOptionStandsInTheManualPage) {
  const UserFolders user;
  for (const auto* command : {"run", "launch"}) {
    const auto page = user.call({"man", command}).out;
    for (const auto& flag : every_flag()) {
      EXPECT_NE(page.find("\\fB" + in_troff(flag) + "\\fR"), std::string::npos) << command << " " << flag;
    }
  }
  const auto page = user.call({"man", "track"}).out;
  EXPECT_NE(page.find(".SH WORDS\nupload"), std::string::npos) << page;
  EXPECT_NE(user.call({"man"}).out.find("\\fBmuster config\\fR"), std::string::npos);
  EXPECT_NE(user.call({"man", "wun"}).error.find("MU006"), std::string::npos);
  EXPECT_NE(user.call({"completion", "tcsh"}).error.find("bash, zsh and fish"), std::string::npos);
}

TEST(Completion, TheReferenceOfNamesOfOthersIsTheTables) {
  const UserFolders user;
  for (const std::string table : {"launch", "deepspeed"})
    EXPECT_NE(read_file(MUSTER_SOURCE_DIR "/docs/reference/launch.md").find(user.call({"options", table}).out),
              std::string::npos)
        << "replace the table in docs/reference/launch.md by the output of `muster options " << table << "`";
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
