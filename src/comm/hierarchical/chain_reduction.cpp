#include "comm/hierarchical/chain_reduction.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/from_blob.h>

#include "comm/hierarchical/chain_broadcast.h"
#include "comm/pieces.h"
#include "comm/shared_memory/reduction.h"

namespace muster::comm {
namespace {

constexpr int kSums = 0, kResults = 1;  // channels
// Bytes of the memory in which sums that go to or come from one rank wait.
constexpr std::size_t kWindowBytes = std::size_t{2} << 20;
// A host waits for the result of a chunk this many chunks later per host between it and the last one.
constexpr int64_t kLagPerHost = 4;

at::ScalarType summed_in(const at::Tensor& tensor, ReduceOp op) {
  const bool rounds = op != ReduceOp::min && op != ReduceOp::max;
  return rounds && at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

at::Tensor elements(const void* data, int64_t count, at::ScalarType dtype) {
  return at::from_blob(const_cast<void*>(data), {count}, at::TensorOptions().dtype(dtype));
}

/// One reduction while it runs.
class ChainReducer {
 public:
  ChainReducer(const HostContext& context, const ChainReduction& sums,
               const std::function<std::byte*(std::size_t)>& scratch)
      : context_(context), sums_(sums), dtype_(sums.source.scalar_type()), wide_(summed_in(sums.source, sums.op)),
        host_(context.host()), last_(context.hosts.count() - 1), broadcast_(context, sums.target, last_) {
    divide_memory(scratch);
  }

  void run() {
    const auto chunks = static_cast<int64_t>(sums_.chunks.size());
    const bool shares = chunks > 0 && sums_.chunks.front().front().receiver < 0;
    const int64_t lag = shares ? kLagPerHost * (last_ - host_) : 0;
    for (std::size_t i = 0; i < window_; ++i) expect_sum();
    expect_results();
    for (int64_t i = 0; i < chunks + lag; ++i) {
      if (i < chunks) reduce(sums_.chunks[i]);
      if (shares && i >= lag) broadcast_.broadcast_on_host(sums_.chunks[i - lag]);
    }
    for (const auto& result : results_) result->wait(context_.deadline);
    for (const auto& sent : sends_)
      if (sent) sent->wait(context_.deadline);
    broadcast_.finish();
    if (!context_.mapped.empty()) context_.end_reading();
  }

 private:
  std::size_t bytes(const Part& part, at::ScalarType dtype) const {
    return static_cast<std::size_t>(part.range.size()) * at::elementSize(dtype);
  }

  void divide_memory(const std::function<std::byte*(std::size_t)>& scratch) {
    int64_t longest = 1;
    for (const Chunk& chunk : sums_.chunks)
      for (const Part& part : chunk) {
        longest = std::max(longest, part.range.size());
        if (context_.owns(part.local_rank)) owned_.push_back(&part);
      }
    longest = (longest + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
    slot_ = static_cast<std::size_t>(longest) * at::elementSize(wide_);
    window_ = std::min(std::max<std::size_t>(kWindowBytes / slot_, 2), std::max<std::size_t>(owned_.size(), 1));
    const std::size_t terms = wide_ == dtype_ ? 0 : static_cast<std::size_t>(context_.hosts.size(host_)) + 1;
    memory_ = scratch(slot_ * (2 * window_ + terms));
    arrivals_.resize(window_);
    sends_.resize(window_);
  }
  std::byte* arrived(std::size_t index) const { return memory_ + slot_ * (index % window_); }
  std::byte* summed(std::size_t index) const { return memory_ + slot_ * (window_ + index % window_); }
  std::byte* widened(std::size_t term) const { return memory_ + slot_ * (2 * window_ + term); }

  /// Posts the receive of the next sum from the previous host.
  void expect_sum() {
    if (host_ == 0 || expected_ == owned_.size()) return;
    const Part& part = *owned_[expected_];
    arrivals_[expected_ % window_] = context_.between.recv(context_.hosts.owner(host_ - 1, part.local_rank),
                                                           arrived(expected_), bytes(part, wide_), kSums);
    ++expected_;
  }

  /// Where this rank puts the result of a part that no other rank gets. This may be in the source itself: the result
  /// arrives only after the source's values were sent.
  std::byte* place_of(const Part& part) const {
    const bool is_piece = sums_.target.numel() < sums_.source.numel();
    return at_element(sums_.target, part.range.begin - (is_piece ? context_.rank() * sums_.target.numel() : 0));
  }
  void expect_results() {
    for (const Chunk& chunk : sums_.chunks)
      for (const Part& part : chunk)
        if (const int from = context_.hosts.owner(last_, part.local_rank);
            part.receiver == context_.rank() && from != context_.rank())
          results_.push_back(context_.between.recv(from, place_of(part), bytes(part, dtype_), kResults));
  }

  void reduce(const Chunk& chunk) {
    const auto fill = [&](std::byte* to) {
      for (const Part& part : chunk) {
        const std::size_t size = bytes(part, dtype_);
        if (!context_.owns(part.local_rank)) std::memcpy(to, at_element(sums_.source, part.range.begin), size);
        to += size;
      }
    };
    const auto use = [&] {
      std::size_t begin = 0;
      for (const Part& part : chunk) {
        if (context_.owns(part.local_rank)) reduce(part, begin);
        begin += bytes(part, dtype_);
      }
    };
    if (context_.mapped.empty()) context_.within.round(context_.deadline, fill, use);
    else use();
  }

  /// The values that a rank of this host contributes to a part; in staging they are at offset `begin`.
  const std::byte* term_of(int rank, const Part& part, std::size_t begin) const {
    if (rank == context_.rank()) return at_element(sums_.source, part.range.begin);
    if (!context_.mapped.empty()) return context_.mapped[rank] + part.range.begin * sums_.source.element_size();
    return context_.within.of(rank, context_.deadline) + begin;
  }

  /// Collects the values of this host's ranks for a part, in the dtype in which they are summed.
  void collect_terms(const Part& part, std::size_t begin) {
    terms_.clear();
    for (int rank = context_.hosts.first(host_); rank < context_.hosts.first(host_) + context_.hosts.size(host_);
         ++rank) {
      const void* term = term_of(rank, part, begin);
      if (wide_ != dtype_) {
        const at::Tensor wide = elements(widened(terms_.size()), part.range.size(), wide_);
        wide.copy_(elements(term, part.range.size(), dtype_));
        term = wide.const_data_ptr();
      }
      terms_.push_back(term);
    }
  }
  /// Reduces the terms to `into`. If the only term is this rank's own tensor, it stays where it is. Returns the result.
  const void* reduce_terms_to(void* into, const Part& part) {
    if (terms_.size() == 1) {
      if (wide_ == dtype_ || terms_.front() == into) return terms_.front();
      return std::memcpy(into, terms_.front(), bytes(part, wide_));
    }
    const ReduceOp op = sums_.op == ReduceOp::mean ? ReduceOp::sum : sums_.op;
    reduce_memory({&into, 1}, terms_, static_cast<std::size_t>(part.range.size()), wide_, op);
    return into;
  }

  void reduce(const Part& part, std::size_t begin) {
    const std::size_t index = reduced_++;
    collect_terms(part, begin);
    // The last sum in this memory must have been sent first.
    if (auto& sent = sends_[index % window_]) sent->wait(context_.deadline), sent.reset();
    if (sums_.two_level) terms_ = {reduce_terms_to(summed(index), part)};
    if (host_ > 0) {
      arrivals_[index % window_]->wait(context_.deadline);
      terms_.insert(terms_.begin(), arrived(index));
    }
    host_ < last_ ? send_on(part, index) : finish(part, index);
    expect_sum();
  }

  void send_on(const Part& part, std::size_t index) {
    const void* sum = reduce_terms_to(summed(index), part);
    sends_[index % window_] =
        context_.between.send(context_.hosts.owner(host_ + 1, part.local_rank), sum, bytes(part, wide_), kSums);
    if (part.receiver < 0) broadcast_.expect(part);
  }

  /// On the last host: computes the result and puts it where it belongs.
  void finish(const Part& part, std::size_t index) {
    const bool goes = part.receiver >= 0 && part.receiver != context_.rank();
    std::byte* result = goes ? summed(index) : place_of(part);
    if (wide_ == dtype_) {
      reduce_terms_to(result, part);
      divide(result, part);
    } else {
      std::byte* sum = widened(static_cast<std::size_t>(context_.hosts.size(host_)));
      reduce_terms_to(sum, part);
      divide(sum, part);
      elements(result, part.range.size(), dtype_).copy_(elements(sum, part.range.size(), wide_));
    }
    if (part.receiver < 0) broadcast_.pass_on(part);
    else if (goes)
      sends_[index % window_] = context_.between.send(part.receiver, result, bytes(part, dtype_), kResults);
  }
  void divide(void* sum, const Part& part) const {
    if (sums_.op == ReduceOp::mean)
      elements(sum, part.range.size(), wide_).div_(static_cast<double>(context_.between.size()));
  }

  const HostContext& context_;
  const ChainReduction& sums_;
  const at::ScalarType dtype_, wide_;  ///< dtype of values and results, and dtype in which they are summed
  const int host_, last_;
  ChainBroadcast broadcast_;
  std::vector<const Part*> owned_;
  std::size_t slot_ = 0;    ///< bytes of memory for one part
  std::size_t window_ = 0;  ///< number of slots for sums that have arrived, and for sums that were computed
  std::byte* memory_ = nullptr;
  std::size_t expected_ = 0, reduced_ = 0;  ///< numbers of owned parts whose receive was posted, and that were reduced
  std::vector<Transport::Request> arrivals_, sends_;
  std::vector<Transport::Request> results_;
  std::vector<const void*> terms_;
};

}  // namespace

void reduce_by_hosts(const HostContext& context, const ChainReduction& sums,
                     const std::function<std::byte*(std::size_t)>& scratch) {
  ChainReducer(context, sums, scratch).run();
}

}  // namespace muster::comm
