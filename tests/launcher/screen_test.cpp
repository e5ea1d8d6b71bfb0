#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

#include "base/descriptor.h"
#include "launcher/console.h"

namespace muster::launcher {
namespace {

struct Pipe {
  Descriptor reading, writing;
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reading = Descriptor(ends[0]);
    writing = Descriptor(ends[1]);
  }
  std::string read() const {
    char bytes[1 << 16];
    ssize_t size = ::read(reading.get(), bytes, sizeof bytes);
    return {bytes, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }
};

TEST(Screen, LinesStayWholeAfterAnUnfinishedOne) {
  Pipe pipe;
  Screen screen(pipe.writing.get());
  EXPECT_FALSE(screen.is_terminal());
  screen.add_line("[0] ", "one");
  screen.add_unfinished("[1] ", "two");
  screen.add_unfinished("", "three");
  screen.add_line("", "four");
  screen.flush();
  EXPECT_EQ(pipe.read(), "[0] one\n[1] two\nthree\nfour\n");
  EXPECT_FALSE(screen.pending());
}

TEST(Screen, FinishedLinesGoAboveTheLiveOne) {
  Pipe pipe;
  Screen screen(pipe.writing.get());
  screen.set_live("[0] 10%");
  screen.add_line("[1] ", "hello");
  screen.set_live("[0] 20%");
  screen.set_live("");
  screen.add_line("[0] ", "done");
  screen.flush();
  const std::string erase = "\r\x1b[K";
  EXPECT_EQ(pipe.read(), "[0] 10%" + erase + "[1] hello\n[0] 10%" + erase + "[0] 20%" + erase + "[0] done\n");
}

TEST(Screen, ASlowReaderDoesNotBlock) {
  Pipe pipe;
  Screen screen(pipe.writing.get());
  const std::string line(1000, 'x');
  while (!screen.full()) screen.add_line("", line);
  screen.flush();
  EXPECT_TRUE(screen.pending());
  std::string all;
  while (screen.pending()) {
    all += pipe.read();
    screen.flush();
  }
  while (all.size() % 1001) all += pipe.read();
  EXPECT_GT(all.size(), size_t{1} << 19);
}

TEST(Screen, WithoutAReaderOutputIsDropped) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  Screen screen(pipe.writing.get());
  pipe.reading.close();
  screen.add_line("", "lost");
  screen.flush();
  EXPECT_FALSE(screen.pending());
}

}  // namespace
}  // namespace muster::launcher
