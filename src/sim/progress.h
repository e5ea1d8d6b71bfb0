#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace muster::sim {

/// While one lives, commands of this process run also where no host thread waits for the machine: other processes may
/// wait for them.
class Progress {
 public:
  /// The one of this process, as long as somebody holds it.
  static std::shared_ptr<Progress> get();
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace muster::sim
