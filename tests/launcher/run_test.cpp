#include "launcher/run.h"

#include <csignal>
#include <filesystem>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include "cluster/listening_socket.h"
#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

std::string rest_after(const std::string& line, const std::string& words) {
  return line.substr(line.find(words) + words.size());
}

TEST(Run, EveryRankLearnsWhoItIs) {
  Process process(muster_run({"--devices", "3", "--strategy", "ddp", "--precision", "bf16-mixed", "--accelerator",
                              "cpu", "--timeout", "60", "--threads", "2", rank_program(), "environment"}));
  ASSERT_EQ(process.wait(), 0) << process.error();
  auto out = process.out();
  for (int rank = 0; rank < 3; ++rank) {
    std::string prefix = "[" + std::to_string(rank) + "] ";
    for (auto line : {"RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank), std::string("WORLD_SIZE=3"),
                      std::string("LOCAL_WORLD_SIZE=3"), std::string("GROUP_RANK=0"), std::string("GROUP_WORLD_SIZE=1"),
                      std::string("MASTER_ADDR=127.0.0.1"), std::string("OMP_NUM_THREADS=2"),
                      std::string("MUSTER_OPTIONS={\"accelerator\":\"cpu\",\"precision\":\"bf16-mixed\","
                                  "\"set_by\":{\"accelerator\":\"flag --accelerator\",\"precision\":\"flag "
                                  "--precision\",\"strategy\":\"flag --strategy\",\"timeout\":\"flag --timeout\"},"
                                  "\"strategy\":\"ddp\",\"timeout\":\"60\"}")})
      EXPECT_NE(out.find(prefix + line + "\n"), std::string::npos) << prefix << line << " is missing in\n" << out;
  }
}

TEST(Run, EachRankSeesItsMigDevice) {
  Process::Setup setup;
  const Folder root;
  std::filesystem::create_directories(root.path() + "/proc/driver/nvidia");
  setup.environment = {"CUDA_VISIBLE_DEVICES=MIG-a,MIG-b", "MUSTER_TEST_ROOT=" + root.path()};
  Process process(muster_run({"--accelerator", "cuda", rank_program(), "environment"}), setup);
  ASSERT_EQ(process.wait(), 0) << process.error();
  for (const auto* line : {"[0] CUDA_VISIBLE_DEVICES=MIG-a\n", "[1] CUDA_VISIBLE_DEVICES=MIG-b\n"})
    EXPECT_NE(process.out().find(line), std::string::npos) << line << " is missing in\n" << process.out();
}

TEST(Run, RanksShareASecretThatNoLineTells) {
  std::vector<std::string> seen;
  for (int job = 0; job < 2; ++job) {
    Process::Setup setup;
    setup.environment = {"MUSTER_LOG=trace"};
    Process process(muster_run({"--devices", "2", "--no-prefix", rank_program(), "secret"}), setup);
    ASSERT_EQ(process.wait(), 0) << process.error();
    const auto first = process.out().substr(0, process.out().find('\n'));
    EXPECT_EQ(process.out(), first + "\n" + first + "\n") << "the ranks have two secrets";
    EXPECT_EQ(first.size(), 64u) << first;
    EXPECT_EQ(process.error().find(first), std::string::npos) << process.error();
    seen.push_back(first);
  }
  EXPECT_NE(seen[0], seen[1]) << "two jobs have one secret";
}

TEST(Run, TheSecretOfAFileIsHandedOn) {
  Folder folder;
  const std::string given(40, 'g');
  const auto file = folder.write("secret", given + "\n", 0600);
  Process process(muster_run({"--devices", "2", "--no-prefix", "--secret-file", file, rank_program(), "secret"}));
  ASSERT_EQ(process.wait(), 0) << process.error();
  EXPECT_EQ(process.out(), given + "\n" + given + "\n");
  const auto open_to_all = folder.write("open", given, 0644);
  Process refused(muster_run({"--devices", "2", "--secret-file", open_to_all, rank_program(), "secret"}));
  EXPECT_EQ(refused.wait(), 2);
  EXPECT_NE(refused.error().find("MU068"), std::string::npos) << refused.error();
  EXPECT_EQ(refused.error().find(given), std::string::npos) << refused.error();
}

TEST(Run, FlagsCountMoreThanVariablesAndVariablesMoreThanTheFile) {
  Folder folder;
  auto file = folder.write(
      "run.yaml",
      "run:\n  devices: 2\n  strategy: fsdp\n  precision: 64-true\n  fsdp: [unit_classes=Block, stage=full]\n", 0644);
  Process::Setup setup;
  setup.environment = {"MUSTER_STRATEGY=hsdp"};
  Process process(muster_run({"--config", file, "--precision", "32-true", rank_program(), "environment"}), setup);
  ASSERT_EQ(process.wait(), 0) << process.error();
  for (auto line : {"[1] WORLD_SIZE=2\n", "\"strategy\":\"hsdp\"", "\"fsdp.unit_classes\":\"Block\"",
                    "\"fsdp.stage\":\"full\"", "\"precision\":\"32-true\""})
    EXPECT_NE(process.out().find(line), std::string::npos) << process.out();
}

TEST(Run, OneLineOfOptionsReachesTheRanks) {
  Process::Setup setup;
  setup.environment = {"MUSTER_OPTIONS=grace=2s,precision=64-true,strategy=ddp", "MUSTER_STRATEGY=fsdp"};
  Process process(
      muster_run({"--options", "{precision: bf16-true, timeout: 9}", "--timeout", "8", rank_program(), "options"}),
      setup);
  ASSERT_EQ(process.wait(), 0) << process.error();
  for (auto line : {"precision=bf16-true\n", "timeout=8s\n", "strategy=ddp\n"})
    EXPECT_NE(process.out().find(line), std::string::npos) << process.out();
}

TEST(Run, FabricsFlagsAndOrderAreTaken) {
  Process flags(muster_run(
      {"--num_nodes", "1", "--main-port=0", "--devices=2", "--no_prefix", rank_program(), "words", "--lr", "0.1"}));
  ASSERT_EQ(flags.wait(), 0) << flags.error();
  EXPECT_EQ(flags.out(), "<--lr><0.1>\n<--lr><0.1>\n");
  Process order({MUSTER_BINARY_DIR "/bin/muster", "run", "true", "--devices=2", "--no-prefix"});
  EXPECT_EQ(order.wait(), 0) << order.error();
  EXPECT_EQ(order.error(), "");
  Process wrong({MUSTER_BINARY_DIR "/bin/muster", "run", "true", "--devices=none"});
  EXPECT_EQ(wrong.wait(), 2) << "the word after the program was not taken as ours";
}

TEST(Run, AWordAfterTheProgramThatLooksOursIsSaidToGoToTheProgram) {
  Process process(muster_run({"--no-prefix", rank_program(), "words", "--devices=2", "--lr=1"}));
  ASSERT_EQ(process.wait(), 0) << process.error();
  EXPECT_EQ(process.out(), "<--devices=2><--lr=1>\n");
  EXPECT_EQ(process.error(),
            "muster: after the program, so passed on to it: --devices=2 (flags of muster run stand before it)\n");
  Process quiet(muster_run({"--no-prefix", "--", rank_program(), "words", "--devices=2"}));
  ASSERT_EQ(quiet.wait(), 0) << quiet.error();
  EXPECT_EQ(quiet.error(), "");
}

TEST(Run, TwoJobsAtOnceHaveTwoPortsAndRankZeroHoldsThem) {
  Process first(muster_run({"--devices", "2", rank_program(), "show_and_wait"}));
  Process second(muster_run({"--devices", "2", rank_program(), "show_and_wait"}));
  auto port = [](Process& process) {
    auto line = process.line_with("launcher muster rank 0 of 2");
    EXPECT_EQ(line.find(" fd -1"), std::string::npos) << "rank 0 was given no socket: " << line;
    return line.empty() ? 0 : std::stoi(rest_after(line, " port "));
  };
  int one = port(first), two = port(second);
  EXPECT_NE(one, two);
  for (int taken : {one, two})
    EXPECT_ANY_THROW(cluster::ListeningSocket(taken, "127.0.0.1")) << "nobody listens on port " << taken;
  for (auto* process : {&first, &second}) process->signal(SIGINT);
  EXPECT_EQ(first.wait(), 130);
  EXPECT_EQ(second.wait(), 130);
}

TEST(Run, AnUncaughtErrorOfAllRanksIsSaidOnceAndHasAnExitCode) {
  Folder folder;
  Process process(muster_run({"--devices", "4", "--log-dir", folder.path(), rank_program(), "throws", "same"}));
  EXPECT_EQ(process.wait(), 79) << process.error();
  EXPECT_EQ(times(process.error(), "muster:   MU002: unknown thing\nmuster:   there is another\n"), 1)
      << process.error();
  EXPECT_EQ(times(process.error(), "MU002"), 1) << process.error();
  EXPECT_EQ(times(process.error(), "exited with code 79 (an error that nobody caught)"), 1) << process.error();
  for (int rank = 0; rank < 4; ++rank) {
    const auto log = folder.read("rank_" + std::to_string(rank) + ".log");
    EXPECT_EQ(times(log, "held back"), times(process.out(), "[" + std::to_string(rank) + "] held back")) << log;
    if (times(process.out(), "[" + std::to_string(rank) + "] held back")) {
      EXPECT_EQ(log, "held back\nmuster: MU002: unknown thing\nthere is another\n");
    }
  }
}

TEST(Run, UncaughtErrorsThatDifferAreSaidOnceEach) {
  Process process(muster_run({"--devices", "2", rank_program(), "throws", "each"}));
  EXPECT_EQ(process.wait(), 79) << process.error();
  EXPECT_GE(times(process.error(), "MU002: of rank "), 1) << process.error();
  for (auto words : {"MU002: of rank 0", "MU002: of rank 1"})
    EXPECT_LE(times(process.error(), words), 1) << process.error();
}

TEST(Run, AnErrorThatTheLauncherCannotSayIsSaidByTheRank) {
  Process script(muster_run({"--devices", "1", "sh", "-c", rank_program() + " throws same; exit 3"}));
  EXPECT_EQ(script.wait(), 3);
  EXPECT_EQ(times(script.error(), "[0] muster: rank 0: MU002: unknown thing"), 1) << script.error();
  Process endless(muster_run({"--devices", "1", rank_program(), "throws", "long"}));
  EXPECT_EQ(endless.wait(), 79);
  EXPECT_NE(endless.error().find("MU002: " + std::string(1000, 'x')), std::string::npos);
}

TEST(Run, OtherUncaughtExceptionsStayCrashes) {
  Process process(muster_run({"--devices", "2", rank_program(), "throws", "other"}));
  EXPECT_EQ(process.wait(), 134) << process.error();
  EXPECT_NE(process.error().find("no error of Muster"), std::string::npos) << process.error();
}

struct Refusal {
  std::vector<std::string> arguments;
  std::string words;
};

TEST(Run, RefusesBeforeAnythingStarts) {
  Folder folder;
  auto text = folder.write("text", "no program", 0644);
  cluster::ListeningSocket taken(0, "127.0.0.1");
  const Refusal refusals[] = {
      {{"--devices", "2", folder.path() + "/none"}, "MU031: cannot execute '" + folder.path() + "/none': No such file"},
      {{text}, "MU031: cannot execute '" + text + "': Permission denied"},
      {{folder.path()}, "it is a folder"},
      {{"no-such-program"}, "there is no such program in PATH"},
      {{}, "MU031: no program is given"},
      {{"--devices", "0", rank_program(), "show"}, "MU030"},
      {{"--devices", "x", rank_program(), "show"}, "MU030"},
      {{"--accelerator", "cuda:0,cuda:1", rank_program(), "show"}, "MU561"},
      {{"--threads", "x", rank_program(), "show"},
       "MU002: flag --threads: option 'threads' is 'x', but a whole number is wanted"},
      {{"--nodes", "2", rank_program(), "show"}, "MU036"},
      {{"--threads", "-2", rank_program(), "show"}, "MU036"},
      {{"--main-port", std::to_string(taken.port()), "--devices", "2", rank_program(), "show"}, "MU033"},
      {{"--log-dir", text, rank_program(), "show"}, "MU037"},
      {{"--no-such-flag", rank_program(), "show"}, "MU006: muster run knows no flag '--no-such-flag'"},
      {{"--nproc-per-node", "2", rank_program(), "show"}, "'--nproc-per-node'; here it is --devices"},
      {{"--precisoin=bf16", rank_program(), "show"}, "nearest is '--precision'"},
      {{"--np", "2", rank_program(), "show"}, "'--np'; here it is --devices"},
      {{"--options", "precision", rank_program(), "show"}, "MU300"},
      {{"--config", "/no/such/file", rank_program(), "show"}, "MU004"},
      {{"--strategy", "fsdpp", rank_program(), "show"},
       "MU170: unknown strategy 'fsdpp'; the known ones are auto, ddp, "},
      {{"--strategy", "dp", rank_program(), "show"}, "MU197"},
      {{"--precision", "bf17", rank_program(), "show"},
       "MU130: unknown precision 'bf17'; the known ones are 32-true, "},
      {{"--fsdp", "unit_clases=Block", rank_program(), "show"}, "MU196: sharded training has no option 'unit_clases'"},
      {{"--fsdp", "stage=all", rank_program(), "show"}, "MU002"},
      {{"--strategy", "ddp", "--fsdp", "stage=full", rank_program(), "show"}, "MU171"},
  };
  for (const auto& refusal : refusals) {
    Process process(muster_run(refusal.arguments));
    EXPECT_EQ(process.wait(), 2);
    EXPECT_NE(process.error().find(refusal.words), std::string::npos)
        << "wanted: " << refusal.words << "\ngot: " << process.error();
    EXPECT_EQ(process.out(), "");
  }
}

TEST(Run, AnUnknownKeyInTheFileListsTheKnownOnes) {
  Folder folder;
  auto file = folder.write("run.yaml", "run:\n  devices: 2\n  stratgy: ddp\n", 0644);
  Process process(muster_run({"--config", file, rank_program(), "show"}));
  EXPECT_EQ(process.wait(), 2);
  EXPECT_NE(process.error().find("MU001: " + file +
                                 " line 3: unknown option 'stratgy' in section 'run'; nearest is 'strategy'; the known "
                                 "ones are accelerator, devices"),
            std::string::npos)
      << process.error();
}

TEST(Run, RankZeroReadsTheInputTheOthersNothing) {
  Process::Setup setup;
  setup.input = "hello";
  Process process(muster_run({"--devices", "2", rank_program(), "input"}), setup);
  EXPECT_EQ(process.wait(), 0);
  EXPECT_NE(process.out().find("[0] read 5 hello\n"), std::string::npos) << process.out();
  EXPECT_NE(process.out().find("[1] read 0 \n"), std::string::npos) << process.out();
}

TEST(Run, CommandLineKnowsItsCommandsAndErrors) {
  auto call = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), MUSTER_BINARY_DIR "/bin/muster");
    auto process = std::make_unique<Process>(arguments);
    int code = process->wait();
    return std::tuple(code, process->out(), process->error());
  };
  auto [version_code, version, none] = call({"--version"});
  EXPECT_EQ(version_code, 0);
  EXPECT_EQ(version.substr(0, 8), "muster 0");
  auto [explain_code, page, nothing] = call({"explain", "mu031"});
  EXPECT_EQ(explain_code, 0);
  EXPECT_EQ(page.substr(0, 8), "# MU031 ");
  auto [unknown_code, no_page, known] = call({"explain", "MU999"});
  EXPECT_EQ(unknown_code, 2);
  EXPECT_NE(known.find("MU005: there is no error 'MU999'; the known ones are MU001, "), std::string::npos) << known;
  auto [wrong_code, no_out, commands] = call({"frob"});
  EXPECT_EQ(wrong_code, 2);
  EXPECT_NE(commands.find("there is no command 'frob'; the known ones are:\n  run "), std::string::npos) << commands;
  auto [help_code, help, no_error] = call({"run", "--help"});
  EXPECT_EQ(help_code, 0);
  EXPECT_NE(help.find("--devices"), std::string::npos);
}

}  // namespace
}  // namespace muster::launcher::testing
