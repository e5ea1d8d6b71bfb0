#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace muster::comm {

class ThreadTransport;

/// Holds the messages between the threads of one group.
class ThreadHub {
 public:
  ThreadHub(int size, std::shared_ptr<Waiting> waiting)
      : size_(size), waiting_(std::move(waiting)), boxes_(size * size), closed_(size) {}

  /// Makes `rank` fail at its step `step`.
  void kill(int rank, int64_t step) { kill_point_ = {rank, step}; }
  std::unique_ptr<Transport> join(const std::shared_ptr<ThreadHub>& self, int rank);

 private:
  friend class ThreadTransport;
  class Block;
  struct Box {
    std::deque<Frame> frames;
    std::deque<Block*> sends;
    std::deque<Block*> receives;
  };
  struct KillPoint {
    int rank = -1;
    int64_t step = 0;
  };

  Box& box(int from, int to) { return boxes_[from * size_ + to]; }

  const int size_;
  const std::shared_ptr<Waiting> waiting_;
  KillPoint kill_point_;
  // Guarded by the mutex of waiting_.
  std::vector<Box> boxes_;
  std::vector<bool> closed_;
  std::map<std::string, std::weak_ptr<ThreadHub>> parts_;
};

}  // namespace muster::comm
