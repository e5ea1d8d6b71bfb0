#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "checkpoint/publish_together.h"
#include "checkpoint/rank_save_plan.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void raise_later(const std::exception_ptr& failure, const fs::path& folder) {
  try {
    std::rethrow_exception(failure);
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.id(),
                          "the save to " + folder.string() + " that was started earlier failed: " + error.message());
  }
}

}  // namespace

class CheckpointWriter::Worker {
 public:
  Worker(const comm::Communicator& group, const WriteCheckpointOptions& options)
      : rank_(group.rank()), group_(group.internal("a checkpoint writer").duplicate()), options_(options) {}

  ~Worker() {
    if (!thread_.joinable()) return;
    {
      std::unique_lock lock(mutex_);
      if (!ended_.wait_for(lock, group_.timeout(), [&] { return !busy_; })) {
        gives_up_ = true;
        group_.abort("the writer of checkpoints ended before its save was done");
      }
    }
    thread_.join();
    if (failure_) log_failure();
  }

  void start(const CheckpointContents& contents, const fs::path& folder) {
    wait();
    folder_ = folder;
    unplanned_ = nullptr;
    try {
      plan_ = checkpoint::plan_rank(contents, rank_, folder);
      buffer_.take(plan_);
    } catch (...) {
      unplanned_ = std::current_exception();  // the other ranks have started, so the writer's thread reports it
    }
    busy_ = true;
    thread_ = std::thread([this] { run(); });
  }

  fs::path wait() {
    if (thread_.joinable()) thread_.join();
    if (failure_) raise_later(std::exchange(failure_, nullptr), folder_);
    return path_;
  }

  std::uint64_t staging_bytes() const { return buffer_.memory_bytes(); }

  bool busy() const {
    const std::lock_guard lock(mutex_);
    return busy_;
  }

 private:
  void run() {
    const log::ThreadRank rank(rank_);
    fs::path path;
    std::exception_ptr failure;
    try {
      path = checkpoint::publish_together(
          folder_, group_, options_,
          [&](const checkpoint::CreateFile& create, const std::string& id) { return write(create, id); }, plan_.shards);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (!failure) path_ = path;
    failure_ = failure;
    busy_ = false;
    ended_.notify_all();
  }

  format::FileMark write(const checkpoint::CreateFile& create, const std::string& id) {
    if (unplanned_) std::rethrow_exception(unplanned_);
    return checkpoint::write_rank(plan_, &buffer_, create, rank_, id, [&] {
      const std::lock_guard lock(mutex_);
      return !gives_up_;
    });
  }

  void log_failure() const {
    try {
      raise_later(failure_, folder_);
    } catch (const std::exception& error) {
      log::error(error.what());
    }
  }

  int rank_;
  comm::Communicator group_;
  WriteCheckpointOptions options_;
  fs::path folder_, path_;
  checkpoint::RankSavePlan plan_;
  checkpoint::HostBuffer buffer_;
  std::exception_ptr unplanned_, failure_;
  bool busy_ = false, gives_up_ = false;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(const comm::Communicator& group, const WriteCheckpointOptions& options)
    : worker_(std::make_unique<Worker>(group, options)) {}
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::start(const CheckpointContents& contents, const fs::path& folder) {
  worker_->start(contents, folder);
}
fs::path CheckpointWriter::wait() { return worker_->wait(); }
bool CheckpointWriter::busy() const { return worker_->busy(); }
std::uint64_t CheckpointWriter::staging_bytes() const { return worker_->staging_bytes(); }

}  // namespace muster
