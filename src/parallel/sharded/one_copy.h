#pragma once

#include <cstddef>

#include "muster/comm/communicator.h"

namespace muster::parallel {

/// One copy of a model's parameters that the ranks of a host share: controls when they may read and write it, and
/// checks whether they use it in one order.
///
/// A rank reads from the end of a closing barrier until it enters the next opening one, and writes its own part between
/// the two. A failure between them leaves a mix of old and new values: the copy is torn and stays torn. A rank that
/// cannot know that the copy is whole treats it as torn, too. Thread safety: the caller's.
/// Why: docs/decisions/0128-one-copy-of-the-parameters-per-host.md.
class OneCopy {
 public:
  explicit OneCopy(comm::Communicator ranks);

  /// Each rank's part must be a multiple of this many elements of `element_bytes`.
  int64_t part_multiple(std::size_t element_bytes) const;
  /// Returns when no rank reads any more. Throws: CommError. Collective.
  void begin_update();
  /// Returns when all ranks have written. Throws: CommError. Collective.
  void end_update();
  bool is_updating() const noexcept { return updating_; }
  /// Called instead of end_update(): ends the group, so that the other ranks do not wait.
  void tear(const std::string& cause);
  bool is_torn() const noexcept { return !cause_.empty(); }
  /// Throws: CommError (MU540) if the values are torn.
  void require_whole() const;

  /// Records a use that every rank has to make at one point of the program, because it is a collective if each rank has
  /// a copy of its own.
  void note(std::string_view use, std::string_view unit) noexcept;
  /// A hash of these uses in their order. Barriers and reductions compare it between ranks.
  int64_t history_hash() const noexcept { return history_hash_; }

 private:
  void barrier(const char* purpose);

  const comm::Communicator ranks_;
  bool updating_ = false;
  std::string cause_;  // why the values are torn; empty: they are not
  int64_t history_hash_ = 0;
};

}  // namespace muster::parallel
