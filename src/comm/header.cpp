#include "comm/header.h"

#include <algorithm>
#include <cstring>

#include "base/fnv.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr uint32_t kMagic = 0x4d555354;
static_assert(std::is_trivially_copyable_v<Header>);

template <class Words>
int64_t hash(const Words& words) {
  return static_cast<int64_t>(Fnv1a().add_all(words).value());
}

/// Replaces control characters: labels of a peer are shown in messages, so they must not move the cursor.
std::string shown_label(const Header& header) {
  std::string text(header.label, strnlen(header.label, kMaxLabel));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return text;
}

/// Returns false if the parts of a header contradict each other, so that nothing in it can be trusted.
bool is_well_formed(const Header& header) {
  if (header.kind > OperationKind::recv || header.source > Source::library || header.dims < 0) return false;
  if (header.dtype < 0 || header.dtype >= static_cast<int>(at::ScalarType::NumOptions)) return false;
  if (header.tensor_count < 0 || header.tensor_index < 0 ||
      (header.tensor_index > 0 && header.tensor_index >= header.tensor_count))
    return false;
  const bool is_list = has_list(header.kind);
  if (!is_list && header.dims > kMaxDims) return false;
  if (!header.sends_tensor) return true;
  if (is_list || header.scalar_type() == at::ScalarType::Undefined) return false;
  uint64_t bytes = at::elementSize(header.scalar_type());
  for (int64_t size : header.sizes())
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return false;
  return bytes == header.bytes;
}

bool same_kind(const Header& a, int a_rank, const Header& b, int b_rank) {
  if (a.kind == OperationKind::send) return b.kind == OperationKind::recv && a.root == b_rank && b.root == a_rank;
  if (a.kind == OperationKind::recv) return b.kind == OperationKind::send && a.root == b_rank && b.root == a_rank;
  return a.kind == b.kind && (!has_root(a.kind) || a.root == b.root);
}

bool same_label(const Header& a, const Header& b) {
  return a.source == b.source && a.label_hash == b.label_hash && a.tensor_index == b.tensor_index &&
         a.tensor_count == b.tensor_count && a.gradient_step == b.gradient_step && a.history_hash == b.history_hash;
}

const char* gradient_mismatch_hint(const Header& a, const Header& b) {
  const auto averages = [](const Header& one) {
    return one.source == Source::library && shown_label(one).find(kGradientsLabel) != std::string::npos;
  };
  if (!averages(a) || !averages(b)) return "";
  return " The loss of one rank did not use a model that the losses of other ranks used, or ranks use models in "
         "different orders. Let the loss of every rank use the model; multiply by zero what should not count.";
}

constexpr const char* kForwardsNeedAllRanks =
    " Where parameters are sharded over ranks, a forward needs all of them: evaluate on every rank and bring the "
    "answers "
    "together by gather_for_metrics, or evaluate the bare module on one rank inside summon_full_params, or train with "
    "zero2, where a rank may evaluate alone.";

/// A hint that comes first if only one rank runs the forward of a model whose parameters are sharded over ranks.
std::string mismatch_hint(const Header& a, const Header& b) {
  if (a.label_hash == b.label_hash && a.history_hash != b.history_hash)
    return std::string(
               " Before that, the ranks used or updated units of a sharded model in different orders, or one "
               "rank used a unit that another one did not.") +
           kForwardsNeedAllRanks;
  const auto evaluates = [](const Header& one) {
    return one.source == Source::library && shown_label(one).starts_with(kEvaluationLabel);
  };
  if (evaluates(a) == evaluates(b)) return gradient_mismatch_hint(a, b);
  return kForwardsNeedAllRanks;
}

bool agree(const Header& a, int a_rank, const Header& b, int b_rank) {
  if (!same_kind(a, a_rank, b, b_rank) || a.sequence != b.sequence || !same_label(a, b)) return false;
  if (reduces(a.kind) && a.reduce != b.reduce) return false;
  bool typed = a.scalar_type() != at::ScalarType::Undefined && b.scalar_type() != at::ScalarType::Undefined;
  if (typed && a.dtype != b.dtype) return false;
  return !has_one_shape(a.kind) || (a.dims == b.dims && a.shape_hash == b.shape_hash && a.sizes() == b.sizes());
}

}  // namespace

std::string describe(const Header& header) {
  return comm::describe(
      describe(header.kind, static_cast<ReduceOp>(header.reduce), header.root, header.scalar_type(), header.sizes()),
      {.gradient_step = header.gradient_step,
       .text = shown_label(header),
       .tensor_index = header.tensor_index,
       .tensor_count = header.tensor_count,
       .source = header.source});
}

Header make_header(const Operation& operation, const at::Tensor* sent, uint64_t bytes) {
  Header header;
  header.magic = kMagic;
  header.kind = operation.kind;
  header.reduce = static_cast<int8_t>(operation.reduce);
  header.sends_tensor = sent != nullptr;
  header.root = operation.root;
  header.sequence = operation.sequence;
  header.source = operation.label.source;
  header.tensor_index = operation.label.tensor_index;
  header.tensor_count = operation.label.tensor_count;
  header.gradient_step = operation.label.gradient_step;
  header.history_hash = operation.label.history_hash;
  header.label_hash = operation.label.text.empty() ? 0 : hash(operation.label.text);
  operation.label.text.copy(header.label, kMaxLabel);
  header.bytes = bytes;
  header.piggyback = operation.piggyback;
  header.location = operation.location;
  const at::Tensor& tensor = sent ? *sent : described_tensor(operation);
  header.dtype = static_cast<int8_t>(tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined);
  const auto shape = described_shape(operation, tensor);
  header.dims = static_cast<int32_t>(shape.size());
  header.shape_hash = hash(shape);
  std::copy_n(shape.begin(), std::min<std::size_t>(shape.size(), kMaxDims), header.shape);
  return header;
}

uint64_t digest_of(const Header& header) {
  const auto pair = [](auto low, auto high) {
    return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  };
  const auto byte = [](auto value, int place) { return uint32_t{static_cast<uint8_t>(value)} << 8 * place; };
  const uint32_t small = byte(header.kind, 0) | byte(header.reduce, 1) | byte(header.dtype, 2) | byte(header.source, 3);
  uint64_t digest = kMagic;
  for (const uint64_t word : {pair(small, header.root), pair(header.tensor_index, header.tensor_count),
                              static_cast<uint64_t>(header.dims), static_cast<uint64_t>(header.gradient_step),
                              static_cast<uint64_t>(header.history_hash), static_cast<uint64_t>(header.sequence),
                              static_cast<uint64_t>(header.shape_hash), static_cast<uint64_t>(header.label_hash)}) {
    // Each step is a bijection, so headers that differ in exactly one word have different digests.
    digest = (digest ^ word) * 0x9e3779b97f4a7c15ULL;
    digest ^= digest >> 32;
  }
  return digest == 0 ? 1 : digest;
}

Header read_header(const Frame& frame) {
  Header header;
  std::memcpy(&header, frame.bytes.data(), sizeof(Header));
  return header;
}

void write_header(Frame& frame, const Header& header) { std::memcpy(frame.bytes.data(), &header, sizeof(Header)); }

std::byte* payload(Frame& frame) { return frame.bytes.data() + sizeof(Header); }
const std::byte* payload(const Frame& frame) { return frame.bytes.data() + sizeof(Header); }

Frame abort_frame(int rank, const std::string& cause) {
  Frame frame{};
  Header header;
  header.magic = kMagic;
  header.is_abort = 1;
  header.root = rank;
  header.bytes = std::min(cause.size(), kInlineBytes);
  write_header(frame, header);
  std::memcpy(payload(frame), cause.data(), header.bytes);
  return frame;
}

bool is_abort(const Frame& frame) {
  const Header header = read_header(frame);
  return header.magic == kMagic && header.is_abort;
}

void check_headers(const Header& mine, int my_rank, const Frame& frame, int peer, const std::string& group) {
  Header theirs = read_header(frame);
  if (theirs.magic != kMagic)
    throw CommError("MU050",
                    formatted("rank {} sent rank {} bytes that are not a message of group {}: do all ranks run the "
                              "same build?",
                              peer, my_rank, group));
  if (theirs.is_abort) {
    std::string cause(reinterpret_cast<const char*>(payload(frame)), std::min<std::size_t>(theirs.bytes, kInlineBytes));
    throw TransportFailure{TransportFailure::Kind::aborted, peer, cause};
  }
  if (!is_well_formed(theirs))
    throw CommError(
        "MU050", formatted("rank {} sent rank {} a message of group {} whose parts contradict each other: do all ranks "
                           "run the same build?",
                           peer, my_rank, group));
  if (agree(mine, my_rank, theirs, peer)) return;
  auto side = [](int rank, const Header& header) { return formatted("rank {} called {}", rank, describe(header)); };
  std::string first = my_rank < peer ? side(my_rank, mine) : side(peer, theirs);
  std::string second = my_rank < peer ? side(peer, theirs) : side(my_rank, mine);
  std::string place = mine.sequence == theirs.sequence ? formatted("operation {}", mine.sequence)
                                                       : formatted("operation {} on rank {} and {} on rank {}",
                                                                   mine.sequence, my_rank, theirs.sequence, peer);
  const char* whose =
      mine.source == theirs.source ? "" : " One of them is a call of the program, the other one of the library's own.";
  throw CommError("MU050",
                  formatted("{}, {}, {} of group {}.{} All ranks must call the same operations in the same order, with "
                            "equal shapes and dtypes.{}",
                            first, second, place, group, whose, mismatch_hint(mine, theirs)));
}

void check_bytes(const Header& theirs, std::size_t expected, int my_rank, int peer, const Operation& operation,
                 const std::string& group) {
  if (theirs.bytes == expected) return;
  throw CommError("MU050", formatted("rank {} sent {} bytes for the {} that rank {} expected in {} of group {}", peer,
                                     theirs.bytes, expected, my_rank, describe(operation), group));
}

}  // namespace muster::comm
