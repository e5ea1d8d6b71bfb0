#include "report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/variables.h"
#include "muster/base/error.h"

namespace muster::cluster {

/// Size of the page that a rank and its launcher share, in bytes. The constants below give its layout.
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kStatusBytes = 1024;          ///< size of the rank's status in bytes, see report.cpp
inline constexpr std::size_t kLauncherAt = kStatusBytes;   ///< offset of the id of the process that prints the message
inline constexpr std::size_t kWordsAt = kLauncherAt + 16;  ///< offset of the zero-terminated error message

namespace {

constexpr std::uint64_t kMagic = 0x31'4b4e'4152'534d;  // first word of a page
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// The contents of the page. Both sides use the same build of the library; otherwise the magic number differs.
struct Written {
  std::uint64_t magic;
  std::atomic<std::int64_t> steps;
  std::atomic<std::int64_t> lost_at;
  std::atomic<std::int32_t> lost_rank;
  std::atomic<std::int32_t> left_by_exception;
  char reason[512];
};
static_assert(sizeof(Written) <= kStatusBytes && std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<std::int32_t>::is_always_lock_free);

std::int64_t nanoseconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

class Report::Page {
 public:
  Page(int descriptor, void* memory) : descriptor(descriptor), written(static_cast<Written*>(memory)) {}
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() { munmap(written, kPageBytes); }

  /// nullptr if the memory cannot be mapped.
  static std::shared_ptr<Page> map(int descriptor) {
    void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return memory == MAP_FAILED ? nullptr : std::make_shared<Page>(descriptor, memory);
  }

  const int descriptor;
  Descriptor owned;   // of a page from make()
  base::Mutex mutex;  // guard of the text and its fields
  Written* const written;
};

Report Report::make() {
  Descriptor memory(memfd_create("muster-report", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool ready = ftruncate(memory.get(), kPageBytes) == 0 && fcntl(memory.get(), F_ADD_SEALS, kSeals) == 0;
  auto page = ready ? Page::map(memory.get()) : nullptr;
  if (!page) return {};
  page->owned = std::move(memory);
  page->written->steps = -1;
  page->written->lost_rank = -1;
  page->written->magic = kMagic;
  return Report(std::move(page));
}

Report Report::open(int descriptor) {
  struct stat status;
  // The program may have closed the launcher's descriptor and opened another file under its number: only sealed memory
  // is a page.
  if (descriptor < 0 || fcntl(descriptor, F_GET_SEALS) != kSeals || fstat(descriptor, &status) != 0 ||
      status.st_size != kPageBytes)
    return {};
  auto page = Page::map(descriptor);
  return page && page->written->magic == kMagic ? Report(std::move(page)) : Report();
}

int Report::descriptor() const noexcept { return page_ ? page_->descriptor : -1; }

void Report::start() const noexcept {
  if (!page_) return;
  page_->written->lost_rank = -1;
  page_->written->left_by_exception = 0;
  page_->written->steps = -1;
}

void Report::step(std::int64_t count) const noexcept {
  if (page_ && count > page_->written->steps) page_->written->steps = count;
}

void Report::lost(int rank, std::string_view reason) const noexcept {
  if (!page_) return;
  const base::Lock lock(page_->mutex);
  auto& written = *page_->written;
  const auto size = std::min(reason.size(), sizeof written.reason - 1);
  std::memcpy(written.reason, reason.data(), size);
  written.reason[size] = '\0';
  // A repeated report of the same lost rank keeps its first time.
  if (written.lost_rank != rank) written.lost_at = nanoseconds(std::chrono::steady_clock::now());
  written.lost_rank = rank;
}

void Report::succeeded(std::chrono::steady_clock::time_point begun) const noexcept {
  if (page_ && page_->written->lost_rank >= 0 && nanoseconds(begun) > page_->written->lost_at)
    page_->written->lost_rank = -1;
}

void Report::left_by_exception() const noexcept {
  if (page_) page_->written->left_by_exception = 1;
}

RankStatus Report::read() const {
  RankStatus result;
  if (!page_) return result;
  const auto& written = *page_->written;
  result.left_by_exception = written.left_by_exception != 0;
  result.lost_at = written.lost_at;
  result.lost_rank = written.lost_rank;
  result.reason.assign(written.reason, strnlen(written.reason, sizeof written.reason));
  result.steps = written.steps;
  return result;
}

namespace {

std::terminate_handler handler_before = nullptr;  // process-wide, like the terminate handler itself

void flush(FILE* stream) {
  if (ftrylockfile(stream) != 0) return;
  fflush_unlocked(stream);
  funlockfile(stream);
}

[[noreturn]] void end_by_uncaught() {
  if (const auto words = error_message_of(std::current_exception())) {
    const char *rank = std::getenv(kRank), *page = std::getenv(kReportFd);
    if (!write_error_message(Report::open(page ? parse_number<int>(page).value_or(-1) : -1), *words))
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
