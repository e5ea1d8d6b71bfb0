// A library of which one test's programs are made: its constructor does what MUSTER_TEST_AT_LOAD says.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

[[gnu::constructor]] void at_load() {
  const char* given = std::getenv("MUSTER_TEST_AT_LOAD");
  const std::string deed = given ? given : "";
  if (deed == "thread") std::thread([] { pause(); }).detach();
  if (deed == "file") [[maybe_unused]]
    const int file = open("/dev/zero", O_RDONLY);
  if (deed == "process" && fork() == 0)
    for (;;) pause();
  if (deed == "end") std::_Exit(3);
  if (deed == "print") std::fprintf(stderr, "loaded\n");
  // More than fits into a pipe.
  if (deed == "much") std::fprintf(stderr, "%s\nloaded\n", std::string(std::size_t{1} << 17, 'x').c_str());
}

}  // namespace

/// Makes the linker keep the library.
void keep_at_load() {}
