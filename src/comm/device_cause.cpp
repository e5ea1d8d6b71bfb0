#include "comm/device_cause.h"

#include <algorithm>

#include "muster/base/format.h"

namespace muster::comm {
namespace {

std::string operation_of(const DeviceSuspicion& suspicion) {
  if (!suspicion.operation) return formatted("an operation of group {}", suspicion.group);
  return formatted("{}, operation {} of the device's operations in group {}", describe(*suspicion.operation),
                   suspicion.operation->sequence, suspicion.group);
}

DeviceCause silent(const DeviceSuspicion& suspicion, int own_rank, int rank) {
  return {"MU052",
          formatted("rank {} lost rank {} in {}, after {:.1f} s: rank {} does not answer. Look for the first failure "
                    "in the output of that rank; if there is none, it has left the loop earlier, or its node cannot be "
                    "reached.",
                    own_rank, rank, operation_of(suspicion), suspicion.seconds, rank),
          rank};
}

/// The other ranks that the operation involves: those of the group, or the peer of a send or recv.
std::vector<int> others_of(const DeviceSuspicion& suspicion, int own_rank) {
  if (suspicion.operation && is_point_to_point(suspicion.operation->kind))
    return {suspicion.ranks.at(static_cast<std::size_t>(suspicion.operation->root))};
  auto others = suspicion.ranks;
  others.erase(std::remove(others.begin(), others.end(), own_rank), others.end());
  return others;
}

std::string what_the_backend_says(const DeviceSuspicion& suspicion) {
  return suspicion.error.empty() ? ""
                                 : formatted(" (its backend {} reports that {})", suspicion.backend, suspicion.error);
}

}  // namespace

DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations) {
  const auto others = others_of(suspicion, own_rank);
  for (const int rank : others)
    if (!operations.contains(rank)) return silent(suspicion, own_rank, rank);
  const auto& own = operations.at(own_rank);
  for (const int rank : others)
    if (have_mismatch(own, operations.at(rank)))
      return {
          "MU050",
          formatted("{} of the device's operations in group {}. All ranks must call the same operations in the same "
                    "order, with equal shapes and dtypes.",
                    own_rank < rank ? describe_difference(own_rank, own, rank, operations.at(rank))
                                    : describe_difference(rank, operations.at(rank), own_rank, own),
                    suspicion.group),
          -1};
  const bool is_collective = suspicion.operation && !is_point_to_point(suspicion.operation->kind);
  for (const int rank : others)
    if (is_collective && last_operation(operations.at(rank)) < suspicion.operation->sequence)
      return {"MU051",
              formatted("rank {} waited {:.1f} s for rank {} in {}, which that rank has not called. Has it left the "
                        "loop, or does it wait for something else?",
                        own_rank, suspicion.seconds, rank, operation_of(suspicion)),
              rank};
  if (!suspicion.error.empty())
    return {"MU564",
            formatted("the backend {} of rank {} reports in group {} that {}", suspicion.backend, own_rank,
                      suspicion.group, suspicion.error),
            -1};
  return {
      "MU051",
      formatted("rank {} waited {:.1f} s for its device in {}, which all ranks concerned may have called: a device, "
                "or the network between them, hangs, or work that was queued before takes longer than the time-out",
                own_rank, suspicion.seconds, operation_of(suspicion)),
      -1};
}

DeviceCause cause_of_silent_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server,
                                  double silent_seconds) {
  return {
      "MU574",
      formatted("rank {} waited {:.1f} s in {}{}, and cannot ask the other ranks why: the job's store, {}, has not "
                "answered for {:.1f} s. Look whether what holds it is stopped, by a debugger or a signal, or cannot "
                "be reached.",
                own_rank, suspicion.seconds, operation_of(suspicion), what_the_backend_says(suspicion), server.text,
                silent_seconds),
      server.rank};
}

DeviceCause cause_of_lost_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server) {
  return {
      "MU052",
      formatted("rank {} waited {:.1f} s in {}{}, and cannot ask the other ranks why: it has lost the job's store, "
                "{}. Look for the first failure in the output of all ranks, of rank 0 first.",
                own_rank, suspicion.seconds, operation_of(suspicion), what_the_backend_says(suspicion), server.text),
      server.rank};
}

DeviceCause cause_of_lost_rank_that_asked(int own_rank) {
  return {
      "MU052",
      formatted("another rank found an operation of a device that does not end, and was lost before rank {} learned "
                "which",
                own_rank),
      -1};
}

std::string text_of(const DeviceCause& cause) { return formatted("{} {} {}", cause.id, cause.rank, cause.text); }

DeviceCause cause_of(const std::string& text) {
  const auto first = text.find(' '), second = text.find(' ', first + 1);
  if (second == std::string::npos) return {"MU564", text, -1};
  return {text.substr(0, first), text.substr(second + 1), std::stoi(text.substr(first + 1, second - first - 1))};
}

}  // namespace muster::comm
