#include <algorithm>
#include <string>
#include <utility>

#include "base/shown.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/detail/values.h"

namespace muster::runtime {
namespace {

/// Number of places that an error names.
constexpr std::size_t kShown = 8;

std::string place_of(const tree::Leaf& leaf) {
  return (leaf.path.empty() ? "itself" : leaf.path) + (leaf.defined ? "" : " undefined");
}

/// All places, each terminated by a zero.
std::string text_of(const std::vector<tree::Leaf>& leaves) {
  std::string text;
  for (const auto& leaf : leaves) text += place_of(leaf) + '\0';
  return text;
}

/// "2 tensors ([0], [1])". Keys may hold any text, so terminal control characters are escaped.
std::string in_words(const std::string& text) {
  const auto count = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\0'));
  std::string places;
  for (std::size_t i = 0, begin = 0; i < std::min(count, kShown); ++i) {
    const auto end = text.find('\0', begin);
    places += (i ? ", " : "") + shown(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  if (count > kShown) places += ", ...";
  return formatted("{}{}", counted(count, "tensor"), count == 0 ? "" : " (" + places + ")");
}

void require_equal_places(const comm::Communicator& group, std::string_view operation,
                          const std::vector<tree::Leaf>& leaves) {
  auto label = group.label();
  label.text = "comparing the values of " + std::string(operation);
  if (const auto found = comm::first_difference(group.with_label(label).all_gather_bytes(text_of(leaves))))
    throw UsageError(
        "MU065", formatted("{} was given values with tensors in different places: rank 0 has {} and rank {} has {}. "
                           "Give every rank as many, or send the values as objects (gather_object, broadcast_object)",
                           operation, in_words(found->first), found->rank, in_words(found->other)));
}

/// Without a comparison of the values first, the other ranks have already begun with the first tensor: a mismatched
/// barrier ends their operation with an error that quotes its label. If all ranks refuse, their barriers match.
[[noreturn]] void refuse_undefined(const comm::Communicator& group, std::string_view operation, const tree::Leaf& leaf,
                                   bool compared) {
  const auto what = formatted("{} of an undefined tensor{}", operation, leaf.path.empty() ? "" : " at " + leaf.path);
  auto label = group.label();
  label.text = "refusing the " + what;
  if (!compared && group.size() > 1) try {
      group.with_label(label).barrier();
    } catch (const CommError&) {  // the other ranks have their error now
    }
  throw UsageError("MU177",
                   formatted("{} on rank {}; give it a value, or make it an optional that is empty on every rank", what,
                             group.rank()));
}

}  // namespace

struct LeafOperations::State {
  comm::Communicator group;
  comm::OperationLabel label = group.label();
  comm::Communicator current = group;
};

LeafOperations::LeafOperations(const comm::Communicator& group, std::string_view operation,
                               std::vector<tree::Leaf> leaves, bool varies, int source)
    : state_(std::make_shared<State>(State{group})) {
  comm::require_same_device_operations(group);  // the values may come from device operations
  if (source >= 0 && source != group.rank())
    for (auto& leaf : leaves) leaf.defined = true;
  if (varies && group.size() > 1) require_equal_places(group, operation, leaves);
  const auto missing = std::find_if(leaves.begin(), leaves.end(), [](const auto& leaf) { return !leaf.defined; });
  if (missing != leaves.end()) refuse_undefined(group, operation, *missing, varies);
  state_->label.tensor_index = -1;
  state_->label.tensor_count = static_cast<int32_t>(leaves.size());
}

const comm::Communicator& LeafOperations::next() {
  ++state_->label.tensor_index;
  return state_->current = state_->group.with_label(state_->label);
}

void LeafOperations::finish() const { comm::require_same_device_operations(state_->group); }

}  // namespace muster::runtime
