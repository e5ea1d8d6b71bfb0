#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace muster::sim {

/// While an object of this class exists, commands of this process also run when no host thread waits for the machine,
/// because other processes may wait for them.
class Progress {
 public:
  /// The object of this process; it exists as long as somebody holds it.
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
