#include <fcntl.h>

#include <gtest/gtest.h>

#include "base/descriptor.h"
#include "launcher/console.h"

namespace muster::launcher {
namespace {

/// What a stream's bytes, given in these pieces, become on a screen that is a file.
struct Result {
  std::string screen, log;
  std::deque<std::string> tail;
};

Result show(const std::vector<std::string>& pieces, bool live = false, std::string prefix = "[1] ") {
  char screen_name[] = "/tmp/muster-screen-XXXXXX", log_name[] = "/tmp/muster-log-XXXXXX";
  Descriptor screen_file(mkstemp(screen_name)), log_file(mkstemp(log_name));
  unlink(screen_name), unlink(log_name);
  Screen screen(screen_file.get());
  Tail tail;
  RankLog log(Descriptor(dup(log_file.get())));
  RankOutput output({&log, live, std::move(prefix), &screen, &tail});
  for (const auto& piece : pieces) output.add(piece);
  output.finish();
  screen.flush();
  auto text = [](int fd) {
    char bytes[1 << 18];
    return std::string(bytes, static_cast<size_t>(pread(fd, bytes, sizeof bytes, 0)));
  };
  return {text(screen_file.get()), text(log_file.get()), tail.lines()};
}

TEST(RankOutput, PiecesBecomeWholeLines) {
  auto result = show({"a", "b\nc", "", "d\n\nlast"});
  EXPECT_EQ(result.screen, "[1] ab\n[1] cd\n[1] \n[1] last\n");
  EXPECT_EQ(result.log, "ab\ncd\n\nlast");
  EXPECT_EQ(result.tail, (std::deque<std::string>{"ab", "cd", "", "last"}));
}

TEST(RankOutput, TwoStreamsOfARankShareNoLineOfItsLog) {
  char name[] = "/tmp/muster-log-XXXXXX";
  Descriptor file(mkstemp(name));
  unlink(name);
  RankLog log(Descriptor(dup(file.get())));
  Screen screens[] = {Screen(-1), Screen(-1)};
  Tail tail;
  RankOutput out({&log, false, "", &screens[0], &tail}), error({&log, false, "", &screens[1], &tail});
  out.add("loss ");
  out.add("0.5");
  error.add("warning");
  out.add(" and 0.4\n");
  error.add("another\n");
  error.add("unended");
  out.add("");
  log.say("the launcher's own");
  char bytes[200];
  EXPECT_EQ(std::string(bytes, static_cast<size_t>(pread(file.get(), bytes, sizeof bytes, 0))),
            "loss 0.5\nwarning\n and 0.4\nanother\nunended\nthe launcher's own\n");
}

TEST(RankOutput, ABarLeavesItsLastState) {
  EXPECT_EQ(show({"10%\r20", "%\r", "30%\ndos\r\nend\r"}).screen, "[1] 30%\n[1] dos\n[1] end\n");
  EXPECT_EQ(show({"10%\r20%\n"}).log, "10%\r20%\n");
}

TEST(RankOutput, ALiveBarIsShownAsItGoes) {
  const std::string erase = "\r\x1b[K";
  EXPECT_EQ(show({"10%", "\r20%", "\n"}, true).screen, "[1] 10%" + erase + "[1] 20%" + erase + "[1] 20%\n");
}

TEST(RankOutput, WithoutPrefixNothingIsAdded) { EXPECT_EQ(show({"a\nb"}, false, "").screen, "a\nb"); }

TEST(RankOutput, TheTailIsShortAndEndlessLinesAreCut) {
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back(std::to_string(i) + "\n");
  auto tail = show(many).tail;
  ASSERT_EQ(tail.size(), 10u);
  EXPECT_EQ(tail.front(), "90");
  auto endless = show({std::string(100000, 'x'), std::string(100000, 'x')});
  EXPECT_GE(std::count(endless.screen.begin(), endless.screen.end(), '\n'), 2);
  EXPECT_LE(endless.tail.front().size(), 500u);
}

TEST(RankOutput, TheTailKeepsTheWordsOfAnExceptionAndNotItsFrames) {
  std::vector<std::string> pieces{"  what():  shapes cannot be multiplied\n",
                                  "Exception raised from addmm at a.cpp:1 (most recent call first):\n"};
  for (int i = 0; i < 30; ++i)
    pieces.push_back("frame #" + std::to_string(i) + ": c10::Error::Error() + 0x96 (0x7f in libc10.so)\n");
  pieces.push_back("frame # of a picture\n");
  const auto result = show(pieces);
  EXPECT_EQ(result.tail, (std::deque<std::string>{"  what():  shapes cannot be multiplied",
                                                  "Exception raised from addmm at a.cpp:1 (most recent call first):",
                                                  "frame # of a picture"}));
  EXPECT_NE(result.screen.find("frame #29"), std::string::npos);
}

}  // namespace
}  // namespace muster::launcher
