#include "sim/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "sim/tensors.h"

namespace muster::sim {

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
