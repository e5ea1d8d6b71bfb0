#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "comm/mpi/calls.h"

namespace muster::comm::mpi {

/// Messages between ranks that are threads. A send keeps reading its memory until a receive meets it, and a receive
/// writes when a send meets it, however late: what MPI may do at worst.
class SimulatedMessages {
 public:
  struct Item {
    const void* source = nullptr;
    void* target = nullptr;
    std::size_t bytes = 0;
    bool done = false;
  };
  using Place = std::tuple<int, int, int>;  // from, to, tag
  struct Queues {
    std::deque<Item*> sends, receives;
  };

  std::mutex mutex;
  std::deque<Item> items;
  std::map<Place, Queues> queues;
};

class SimulatedMpi final : public Calls {
 public:
  SimulatedMpi(std::shared_ptr<SimulatedMessages> messages, int rank, int size)
      : messages_(std::move(messages)), rank_(rank), size_(size) {}

  std::string version_mismatch() override { return ""; }
  std::string initialize() override { return ""; }
  ThreadLevel thread_level() override { return ThreadLevel::multiple; }
  void on_finalize(std::function<void()>) override {}
  void fail() noexcept override {}
  void set_finalize_timeout(std::chrono::milliseconds) noexcept override {}
  int may_call() noexcept override { return 0; }
  std::string error_string(int code) override { return "error " + std::to_string(code); }
  Handle world() override { return 1; }
  Handle communicator_of(int handle) override { return static_cast<Handle>(handle); }
  bool is_null(Handle) override { return false; }
  int rank_and_size(Handle, int& rank, int& size) override { return rank = rank_, size = size_, 0; }
  int tag_bound() override { return 32767; }
  int duplicate(Handle of, std::chrono::steady_clock::time_point, Handle& made) override { return made = of, 0; }
  void free(Handle) noexcept override {}

  int send(const void* data, std::size_t bytes, int to, int tag, Handle, Handle& request) override {
    std::lock_guard lock(messages_->mutex);
    auto* item = &messages_->items.emplace_back(Item{.source = data, .bytes = bytes});
    request = reinterpret_cast<Handle>(item);
    auto& [sends, receives] = messages_->queues[{rank_, to, tag}];
    if (receives.empty()) return sends.push_back(item), 0;
    match(*item, *receives.front());
    receives.pop_front();
    return 0;
  }

  int recv(void* data, std::size_t bytes, int from, int tag, Handle, Handle& request) override {
    std::lock_guard lock(messages_->mutex);
    auto* item = &messages_->items.emplace_back(Item{.target = data, .bytes = bytes});
    request = reinterpret_cast<Handle>(item);
    auto& [sends, receives] = messages_->queues[{from, rank_, tag}];
    if (sends.empty()) return receives.push_back(item), 0;
    match(*sends.front(), *item);
    sends.pop_front();
    return 0;
  }

  int test(Handle& request, bool& done, std::size_t& bytes) override {
    std::lock_guard lock(messages_->mutex);
    auto* item = reinterpret_cast<Item*>(request);
    done = item->done;
    bytes = item->bytes;
    return 0;
  }

  bool cancel(Handle& request) noexcept override {
    std::lock_guard lock(messages_->mutex);
    auto* item = reinterpret_cast<Item*>(request);
    for (auto& [place, queues] : messages_->queues) std::erase(queues.receives, item);
    return true;
  }

  int notify(int to, int tag, Handle in) override {
    Handle request = 0;
    return send(nullptr, 0, to, tag, in, request);
  }

  int probe(int from, int tag, Handle, bool& there) override {
    std::lock_guard lock(messages_->mutex);
    return there = !messages_->queues[{from, rank_, tag}].sends.empty(), 0;
  }

 private:
  using Item = SimulatedMessages::Item;

  static void match(Item& send, Item& receive) {
    if (send.bytes > 0) std::memcpy(receive.target, send.source, send.bytes);
    receive.bytes = send.bytes;
    send.done = receive.done = true;
  }

  const std::shared_ptr<SimulatedMessages> messages_;
  const int rank_;
  const int size_;
};

}  // namespace muster::comm::mpi
