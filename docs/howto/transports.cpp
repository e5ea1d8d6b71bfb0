// The code of transports.md.
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <muster/accelerator.h>
#include <muster/comm/transport.h>
#include <torch/torch.h>

#include "socket_transport.h"

namespace {

std::unique_ptr<muster::comm::Transport> make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              const muster::GroupOptions& options) {
  return sockets::connect(store, "world", rank, size, options.rendezvous_timeout);
}

}  // namespace

extern "C" const muster::comm::TransportObject muster_transport_sockets{.make = make};

namespace {

/// Two ranks that are threads, over a pair of sockets.
float sum_of_threads() {
  std::array<int, 2> ends{};
  sockets::checked(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
  const auto sum = torch::ones({100'000});
  const auto add = [&](int rank, const torch::Tensor& tensor) {
    std::vector<int> peers{-1, -1};
    peers[1 - rank] = ends[rank];
    auto transport = std::make_unique<sockets::SocketTransport>(rank, peers);
    const auto group = muster::comm::connect(std::move(transport), {.backend = "sockets"});
    group.all_reduce(tensor);
  };
  std::thread other([&] { add(1, torch::full({100'000}, 2.0F)); });
  add(0, sum);
  other.join();
  return sum[99'999].item<float>();
}

}  // namespace

int main() {
  muster::Accelerator accelerator({.backend = "sockets"});
  accelerator.print("{}", accelerator.plan());
  torch::manual_seed(1);
  torch::nn::Linear line(300, 1);
  auto [model, optimizer] = accelerator.prepare(line, torch::optim::SGD(line->parameters(), 0.01));
  torch::manual_seed(10 + accelerator.process_index());
  const auto x = torch::randn({64, 300}), y = x.mean(1, true);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const auto loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? first : last) = loss.item<double>();
  }
  const bool good = last < first && sum_of_threads() == 3.0F;
  if (accelerator.is_main_process()) std::printf("%d passed, %d failed, 0 skipped\n", good, !good);
  return good ? 0 : 1;
}
