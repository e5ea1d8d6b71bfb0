#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/flight_recorder.h"

namespace muster::comm {

/// Why a rank believes that a group's operations on a device will not end.
struct DeviceSuspicion {
  std::string group;
  std::vector<int> ranks;  ///< the ranks of the group, as ranks in the job
  std::string backend;
  std::optional<Header> operation{};  ///< the operation that has not ended
  double seconds = 0;                 ///< how long the operation has been running, in seconds
  std::string error{};                ///< the error that the backend reports; empty: none
};

/// The cause that ended the groups; every rank gets an equal one.
struct DeviceCause {
  std::string id;
  std::string text;
  int rank = -1;  ///< the rank of the job that caused it; -1: unknown
};

/// The process that serves the job's store.
struct StoreServer {
  std::string text;  ///< a clause for messages: "which rank 0 holds"
  int rank = -1;     ///< its rank in the job; -1: not a rank
};

/// Finds what delayed an operation, from the ranks' flight recorders. `operations`: for each rank that has answered,
/// its operations_of() for this group.
DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations);

// The causes that a rank reports if it could not read the other ranks' records.
DeviceCause cause_of_silent_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server,
                                  double silent_seconds);
DeviceCause cause_of_lost_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server);
DeviceCause cause_of_lost_rank_that_asked(int own_rank);

/// The cause as one text, in which it is sent to other ranks.
std::string text_of(const DeviceCause& cause);
DeviceCause cause_of(const std::string& text);

}  // namespace muster::comm
