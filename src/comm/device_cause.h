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
  std::vector<int> ranks;  ///< the group's, in the job
  std::string backend;
  std::optional<Header> operation{};  ///< the one that has not ended
  double seconds = 0;                 ///< since when
  std::string error{};                ///< what the backend says; empty: nothing
};

/// What ended the groups: on all ranks the same.
struct DeviceCause {
  std::string id;
  std::string text;
  int rank = -1;  ///< of the job, that caused it; -1: none is known
};

/// The process that serves the job's store.
struct StoreServer {
  std::string text;  ///< "which rank 0 holds"
  int rank = -1;     ///< of the job; -1: no rank
};

/// What held an operation up, found by the ranks' flight recorders. `operations`: for each rank that has answered, what
/// operations_of() gives for this group.
DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations);

// The causes of a rank that could not learn of the others'.
DeviceCause cause_of_silent_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server,
                                  double silent_seconds);
DeviceCause cause_of_lost_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server);
DeviceCause cause_of_lost_rank_that_asked(int own_rank);

/// A cause as one text, by which it goes to other ranks.
std::string text_of(const DeviceCause& cause);
DeviceCause cause_of(const std::string& text);

}  // namespace muster::comm
