#include "sim/channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/descriptor.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "sim/tensors.h"

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

void Channel::enqueue(const std::string& name, const std::string& what, const at::Tensor& in, const at::Tensor& out,
                      Combine combine) {
  const auto count = ++enqueued_;
  const auto self = shared_from_this();
  Command posting{formatted("{} {} (posts)", name, count), {}};
  add_access(posting.accesses, in, false);
  posting.ready = [self, count] { return self->all_finished(count - 1) || self->is_over(count); };
  posting.run = [self, count, what, in = kernel_tensor(in)] { self->post(count, what, in); };
  Command finishing{formatted("{} {}", name, count), {}};
  add_access(finishing.accesses, out, true);
  finishing.ready = [self, count] { return self->can_finish(count) || self->is_over(count); };
  finishing.run = [self, count, name = finishing.what, in = kernel_tensor(in), out = kernel_tensor(out),
                   combine = std::move(combine)] { self->finish(count, name, in, out, combine); };
  Machine::get().enqueue(stream_, std::move(posting));
  Machine::get().enqueue(stream_, std::move(finishing));
}

void Channel::enqueue_leave() {
  Machine::get().enqueue(stream_, {"leaving a group", [segment = segment_] { segment->leave(); }});
}

bool Channel::all_finished(uint64_t count) const {
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (slot(i).finished < count) return false;
  return true;
}

bool Channel::all_posted(uint64_t count) const {
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (slot(i).posted < count) return false;
  return true;
}

std::string Channel::missing(uint64_t count) const {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    // A rank posts before it leaves, so read first whether it has left.
    const auto why = segment_->end_of(ranks_[i]);
    if (!why.empty() && slot(i).posted < count) return formatted("rank {} {}", ranks_[i], why);
  }
  return {};
}

bool Channel::can_finish(uint64_t count) const {
  return all_posted(count) && (!segment_->hangs() || disagreement().empty());
}

/// Called often, but needs a system call, so only some calls look.
bool Channel::is_over(uint64_t count) {
  if (segment_->hangs()) return segment_->is_given_up();
  return ++asked_ % 32 == 0 && !missing(count).empty();
}

void Channel::post(uint64_t count, const std::string& what, const at::Tensor& in) {
  // An operation that is over is not posted, because a rank may still read the payload of the one before.
  if (segment_->is_given_up() || !all_finished(count - 1)) return;
  auto& own = slot(own_);
  std::strncpy(own.what, what.c_str(), Slot::kText - 1);
  TORCH_CHECK(!in.defined() || in.nbytes() <= Segment::kPayload,
              "a collective of the simulated accelerator takes up to ", Segment::kPayload, " bytes");
  if (in.defined() && in.numel() > 0) std::memcpy(segment_->payload(first_ + own_), in.const_data_ptr(), in.nbytes());
  own.posted = count;
}

std::string Channel::disagreement() const {
  for (size_t i = 1; i < ranks_.size(); ++i)
    if (std::strncmp(slot(i).what, slot(0).what, Slot::kText) != 0)
      return formatted("rank {} calls {}, but rank {} calls {}", ranks_[0], slot(0).what, ranks_[i], slot(i).what);
  return {};
}

void Channel::finish(uint64_t count, const std::string& name, const at::Tensor& in, const at::Tensor& out,
                     const Combine& combine) {
  if (segment_->is_given_up()) return;
  if (!all_posted(count)) throw CommError("MU555", formatted("{}: {}", name, missing(count)));
  const AsKernel plain;
  std::exception_ptr failure;
  try {
    if (const auto text = disagreement(); !text.empty()) throw CommError("MU554", formatted("{}: {}", name, text));
    std::vector<at::Tensor> parts;
    for (size_t i = 0; in.defined() && i < ranks_.size(); ++i)
      parts.push_back(at::from_blob(segment_->payload(first_ + i), {in.numel()}, in.options()));
    if (combine) combine(parts, out);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  slot(own_).finished = count;  // so that the other ranks are not held up
  if (failure) std::rethrow_exception(failure);
}

}  // namespace muster::sim
