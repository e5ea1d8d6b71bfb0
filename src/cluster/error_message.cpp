#include "cluster/error_message.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/variables.h"
#include "muster/base/error.h"
#include "report_page.h"

namespace muster::cluster {
namespace {

std::terminate_handler handler_before = nullptr;  // process-wide, like the terminate handler itself

/// This process's page from the launcher.
Report own_report() {
  const char* text = std::getenv(kReportFd);
  int descriptor = -1;
  if (text) std::from_chars(text, text + std::strlen(text), descriptor);
  return Report::open(descriptor);
}

void flush(FILE* stream) {
  if (ftrylockfile(stream) != 0) return;
  fflush_unlocked(stream);
  funlockfile(stream);
}

[[noreturn]] void end_by_uncaught() {
  if (const auto words = error_message_of(std::current_exception())) {
    const char* rank = std::getenv(kRank);
    if (!write_error_message(own_report(), *words))
      std::fprintf(stderr, "muster: rank %s: %s\n", rank ? rank : "?", words->c_str());
    end_by_error();
  }
  if (handler_before) handler_before();
  std::abort();
}

}  // namespace

void flush_stdio() noexcept {
  flush(stdout);
  flush(stderr);
}

void end_by_error() noexcept {
  flush_stdio();
  _exit(kUncaughtError);
}

std::optional<std::string> error_message_of(const std::exception_ptr& exception) {
  if (!exception) return std::nullopt;
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.what();
  } catch (...) {
    return std::nullopt;
  }
}

void promise_to_print(const Report& report) noexcept {
  const pid_t launcher = getpid();
  if (report.descriptor() < 0) return;
  [[maybe_unused]] const auto written = pwrite(report.descriptor(), &launcher, sizeof launcher, kLauncherAt);
}

bool write_error_message(const Report& report, const std::string& words) noexcept {
  pid_t launcher = 0;
  const int page = report.descriptor();
  // longer messages would be cut
  if (page < 0 || words.size() + kWordsAt >= kPageBytes) return false;
  if (pread(page, &launcher, sizeof launcher, kLauncherAt) != sizeof launcher) return false;
  if (launcher != getppid() && launcher != getpid()) return false;
  const auto size = static_cast<ssize_t>(words.size() + 1);
  return pwrite(page, words.c_str(), words.size() + 1, kWordsAt) == size;
}

std::string read_error_message(const Report& report) {
  char words[kPageBytes - kWordsAt];
  const auto size = report.descriptor() < 0 ? 0 : pread(report.descriptor(), words, sizeof words, kWordsAt);
  return size <= 0 ? "" : std::string(words, strnlen(words, static_cast<std::size_t>(size)));
}

bool install_terminate_handler() noexcept {
  if (!std::getenv(kJob) || std::getenv("TORCHELASTIC_RUN_ID")) return false;
  handler_before = std::set_terminate(end_by_uncaught);
  return true;
}

}  // namespace muster::cluster
