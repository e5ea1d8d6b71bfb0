#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/header.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// What one rank sent and took, frames' headers aside, and what its thread held in tensors at most.
struct Traffic {
  int64_t sent = 0;
  std::map<int, int64_t> sent_to{};  ///< by rank
  int64_t received = 0;
  int64_t held = 0;
};

class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> under, Traffic& traffic) : under_(std::move(under)), traffic_(traffic) {}
  int rank() const noexcept override { return under_->rank(); }
  int size() const noexcept override { return under_->size(); }
  void send_frame(int to, const Frame& frame, TimePoint deadline) override {
    count_sent(to, inside(frame));
    under_->send_frame(to, frame, deadline);
  }
  void recv_frame(int from, Frame& frame, TimePoint deadline) override {
    under_->recv_frame(from, frame, deadline);
    traffic_.received += inside(frame);
  }
  Request send(int to, const void* data, std::size_t bytes, int channel) override {
    count_sent(to, static_cast<int64_t>(bytes));
    return under_->send(to, data, bytes, channel);
  }
  Request recv(int from, void* data, std::size_t bytes, int channel) override {
    traffic_.received += static_cast<int64_t>(bytes);
    return under_->recv(from, data, bytes, channel);
  }
  void abort(const std::string& cause) noexcept override { under_->abort(cause); }
  void close() noexcept override { under_->close(); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return under_->split(ranks, name);
  }

 private:
  void count_sent(int to, int64_t bytes) {
    traffic_.sent += bytes;
    traffic_.sent_to[to] += bytes;
  }
  static int64_t inside(const Frame& frame) {
    const auto bytes = read_header(frame).bytes;
    return bytes <= kInlineBytes ? static_cast<int64_t>(bytes) : 0;
  }

  std::unique_ptr<Transport> under_;
  Traffic& traffic_;
};

}  // namespace muster::comm
