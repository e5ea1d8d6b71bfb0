#include "sim/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <system_error>
#include <vector>

#include "base/descriptor.h"

namespace muster::sim {
namespace {

constexpr size_t kPage = 4096;

Descriptor opened(int number, const char* what) {
  if (number < 0) throw std::system_error(errno, std::generic_category(), what);
  return Descriptor(number);
}

void* map(const Descriptor& file, size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "memory for ranks of a group");
  return at;
}

/// A process that has ended stays a zombie until its parent waits for it.
bool has_ended(int64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');  // the state follows the name, which may contain any character
  return name_end == std::string::npos || text.compare(name_end, 3, ") Z") == 0 ||
         text.compare(name_end, 3, ") X") == 0;
}

std::string mark_of(size_t rank) { return "opened/" + std::to_string(rank); }

std::vector<std::string> marks(size_t ranks) {
  std::vector<std::string> all;
  for (size_t rank = 0; rank < ranks; ++rank) all.push_back(mark_of(rank));
  return all;
}

}  // namespace

Segment::Segment(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const BackendOptions& options)
    : ranks_(static_cast<size_t>(size)), own_(static_cast<size_t>(rank)), hangs_(options.hangs) {
  const auto timeout = options.timeout;
  if (rank == 0) {
    const Descriptor file = opened(::memfd_create("muster_sim", MFD_CLOEXEC), "memory for ranks of a group");
    if (::ftruncate(file.get(), static_cast<off_t>(bytes())) != 0)
      throw std::system_error(errno, std::generic_category(), "memory for ranks of a group");
    begin_ = static_cast<char*>(map(file, bytes()));
    store->set("path", "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file.get()));
    member(own_).process = ::getpid();
    store->set(mark_of(own_), "1");
    store->wait(marks(ranks_), timeout);  // the file is closed when this returns
    return;
  }
  store->wait({"path"}, timeout);
  const auto path = store->get_to_str("path");
  const Descriptor file = opened(::open(path.c_str(), O_RDWR | O_CLOEXEC), path.c_str());
  begin_ = static_cast<char*>(map(file, bytes()));
  member(own_).process = ::getpid();
  store->set(mark_of(own_), "1");
  store->wait(marks(ranks_), timeout);
}

Segment::~Segment() { ::munmap(begin_, bytes()); }

size_t Segment::bytes() const { return kPage * (1 + slots()) + kPayload * slots(); }

Slot& Segment::slot(size_t index) const { return *reinterpret_cast<Slot*>(begin_ + kPage * (1 + index)); }

char* Segment::payload(size_t index) const { return begin_ + kPage * (1 + slots()) + kPayload * index; }

std::string Segment::end_of(int rank) const {
  const auto& of = member(static_cast<size_t>(rank));
  if (of.left) return "has left the group";
  if (has_ended(of.process)) return "has ended (process " + std::to_string(of.process.load()) + ")";
  return {};
}

bool Segment::has_other_processes() const {
  for (size_t rank = 0; rank < ranks_; ++rank)
    if (member(rank).process != ::getpid()) return true;
  return false;
}

}  // namespace muster::sim
