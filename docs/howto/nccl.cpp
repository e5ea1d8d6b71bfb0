#include <chrono>
#include <cstdio>
#include <string>

#include <muster/accelerator.h>
#include <muster/comm/rendezvous.h>
#include <torch/torch.h>

namespace {

/// Stands for a vendor's backend.
class VendorBackend : public c10d::Backend {
 public:
  VendorBackend(const c10::intrusive_ptr<c10d::Store>& /*store*/, int rank, int size,
                std::chrono::milliseconds /*timeout*/)
      : Backend(rank, size) {}
  const std::string getBackendName() const override { return "vendor"; }
};

c10::intrusive_ptr<c10d::Backend> make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       const muster::GroupOptions& options) {
  return c10::make_intrusive<VendorBackend>(store, rank, size, options.timeout);
}

}  // namespace

extern "C" const muster::comm::BackendObject muster_backend_object{
    .entry = {.device = c10::DeviceType::XPU, .make = make, .without = {torch::kInt16}}};

int main() {
  muster::Accelerator accelerator({.device_backend = "auto", .strategy = "ddp"});
  accelerator.print("{}", accelerator.plan());
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto x = torch::ones({8, 4}, accelerator.device());
  double first = 0, last = 0;
  for (int step = 0; step < 5; ++step) {
    auto loss = model(x).pow(2).mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? first : last) = loss.item<double>();
  }
  const bool has_entry = muster_backend_object.entry.make != nullptr;
  const bool good = last < first && has_entry;
  std::printf("%d passed, %d failed, 0 skipped\n", good, !good);
  return good ? 0 : 1;
}
