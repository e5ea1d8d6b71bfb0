#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "muster/comm/communicator.h"

namespace muster::parallel {

/// One copy of a model's parameters that the ranks of a host have in common: when they may read and write it, and
/// whether they use it in the same order.
///
/// A rank reads from the end of a closing barrier until it enters the next opening one, and writes its own part between
/// the two. Whatever fails between them leaves values of which some are new: they are torn, for good, and so is the
/// copy on every rank that cannot know that it is whole. Thread safety: the caller's.
class OneCopy {
 public:
  explicit OneCopy(comm::Communicator ranks);

  /// Of how many elements of this size each rank's part has to be a multiple.
  int64_t part_multiple(std::size_t element_bytes) const;
  /// Returns when no rank reads any longer. Throws: CommError. Collective.
  void begin_update();
  /// Returns when all ranks have written. Throws: CommError. Collective.
  void end_update();
  bool is_updating() const noexcept { return updating_; }
  /// Instead of end_update(): ends the group, so that the other ranks do not wait.
  void tear(const std::string& cause);
  bool is_torn() const noexcept { return !cause_.empty(); }
  /// Throws: CommError (MU540) if the values are torn.
  void require_whole() const;

  /// Notes a use that every rank has to make at the same place: where each rank has a copy of its own it is a
  /// collective.
  void note(std::string_view use, std::string_view unit) noexcept;
  /// A hash of these uses, in their order, which barriers and reductions compare.
  int64_t history_hash() const noexcept { return history_hash_; }

 private:
  void barrier(const char* purpose);

  const comm::Communicator ranks_;
  bool updating_ = false;
  std::string cause_;  // of what tore the values
  int64_t history_hash_ = 0;
};

}  // namespace muster::parallel
