#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared_memory/areas.h"
#include "comm/wait_policy.h"

namespace muster::comm {

/// The areas of a group whose ranks are threads of this process.
class ThreadAreasHub {
 public:
  ThreadAreasHub(int size, std::shared_ptr<WaitPolicy> waiting);
  ~ThreadAreasHub();
  ThreadAreasHub(const ThreadAreasHub&) = delete;
  ThreadAreasHub& operator=(const ThreadAreasHub&) = delete;

  /// Makes `rank` fail at its scheduling point number `step`, counted from 1.
  void kill(int rank, int64_t step) { kill_rank_ = rank, kill_step_ = step; }
  static std::unique_ptr<SharedAreas> join(const std::shared_ptr<ThreadAreasHub>& hub, int rank);

 private:
  friend class ThreadAreas;

  const int size_;
  const std::shared_ptr<WaitPolicy> waiting_;
  int kill_rank_ = -1;
  int64_t kill_step_ = 0;
  std::vector<std::byte*> areas_;
  // Guarded by the mutex of waiting_.
  std::vector<bool> closed_;
  std::map<std::string, std::weak_ptr<ThreadAreasHub>> subgroups_;
  std::map<uint64_t, std::weak_ptr<SharedBuffer>> buffers_;
};

}  // namespace muster::comm
