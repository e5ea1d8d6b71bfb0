// Samples a second through a loader, asked as "WHO WORKLOAD WORKERS":
//   WHO       get (our loader, one sample at a time), place (our loader, whole batches in place),
//             torch (torch::data, one sample at a time), batch (torch::data, whole batches by get_batch),
//             loop (calls get on as many threads and drops what it gives)
//   WORKLOAD  images (3 x 32 x 32 bytes to floats, batches of 64) or tokens (rows of 256, batches of 32)
// Arguments, if any: a device to which our loader brings its batches, cpu or cuda; then "tiny", to try the program and
// measure nothing.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "protocol.h"

namespace {

using Example = torch::data::Example<>;
constexpr int64_t kImages = 20000, kPixels = 3 * 32 * 32, kRows = 15000, kWindow = 256;

// The same bytes as in peers/data_peer.py.
struct Images {
  static constexpr int64_t kBatch = 64, kSize = kImages;
  torch::Tensor x = (torch::arange(kImages).unsqueeze(1) * 7 + torch::arange(kPixels))
                        .remainder(251)
                        .to(torch::kByte)
                        .view({-1, 3, 32, 32});
  torch::Tensor y = torch::arange(kImages).remainder(10);

  Example one(size_t i) { return {x[static_cast<int64_t>(i)].to(torch::kFloat).div_(255), y[static_cast<int64_t>(i)]}; }
  template <class Indices>
  void place(const Indices& indices, Example& out) const {
    const auto n = static_cast<int64_t>(indices.size());
    muster::tree::ensure_tensor(out.data, {n, 3, 32, 32}, torch::kFloat);
    muster::tree::ensure_tensor(out.target, {n}, torch::kLong);
    auto* to = out.data.mutable_data_ptr<float>();
    auto* label = out.target.mutable_data_ptr<int64_t>();
    const auto* bytes = x.const_data_ptr<uint8_t>();
    const auto* labels = y.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < n; ++i, to += kPixels) {
      const auto index = static_cast<int64_t>(indices[i]);
      const auto* from = bytes + index * kPixels;
      for (int64_t j = 0; j < kPixels; ++j) to[j] = static_cast<float>(from[j]) / 255.0f;
      label[i] = labels[index];
    }
  }
};

struct Tokens {
  static constexpr int64_t kBatch = 32, kSize = kRows;
  torch::Tensor text = (torch::arange(kRows * (kWindow + 1)) * 31).remainder(50000).to(torch::kInt);

  Example one(size_t i) {
    const auto at = static_cast<int64_t>(i) * (kWindow + 1);
    return {text.slice(0, at, at + kWindow).to(torch::kLong), text.slice(0, at + 1, at + 1 + kWindow).to(torch::kLong)};
  }
  template <class Indices>
  void place(const Indices& indices, Example& out) const {
    const auto n = static_cast<int64_t>(indices.size());
    muster::tree::ensure_tensor(out.data, {n, kWindow}, torch::kLong);
    muster::tree::ensure_tensor(out.target, {n, kWindow}, torch::kLong);
    auto* data = out.data.mutable_data_ptr<int64_t>();
    auto* target = out.target.mutable_data_ptr<int64_t>();
    for (const auto index : indices) {
      const auto* from = text.const_data_ptr<int32_t>() + static_cast<int64_t>(index) * (kWindow + 1);
      for (int64_t j = 0; j < kWindow; ++j) data[j] = from[j];
      for (int64_t j = 0; j < kWindow; ++j) target[j] = from[j + 1];
      data += kWindow;
      target += kWindow;
    }
  }
};

template <class W>
struct BySample : torch::data::datasets::Dataset<BySample<W>> {
  explicit BySample(W w) : work(std::move(w)) {}
  Example get(size_t i) override { return work.one(i); }
  std::optional<size_t> size() const override { return W::kSize; }
  W work;
};

template <class W>
struct InPlace {
  int64_t size() const { return W::kSize; }
  void get_batch(std::span<const int64_t> indices, Example& out) const { work.place(indices, out); }
  W work;
};

// The same for torch::data, which wants a new batch each time.
template <class W>
struct ByBatch : torch::data::datasets::BatchDataset<ByBatch<W>, Example> {
  explicit ByBatch(W w) : work(std::move(w)) {}
  Example get_batch(at::ArrayRef<size_t> indices) override {
    Example batch{{}, {}};
    work.place(indices, batch);
    return batch;
  }
  std::optional<size_t> size() const override { return W::kSize; }
  W work;
};

/// One pass; f sees every batch.
using Pass = std::function<void(const std::function<void(const Example&)>& f)>;

template <class Dataset>
Pass torch_pass(Dataset dataset, int64_t batch_size, int workers) {
  auto loader = std::shared_ptr(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      std::move(dataset), torch::data::DataLoaderOptions(batch_size).workers(workers)));
  return [loader](const auto& f) {
    for (auto& batch : *loader) f(batch);
  };
}

/// What the arguments say.
struct Place {
  std::optional<muster::Accelerator> accelerator;
  double seconds = 0.3;
};
Place& place() {
  static auto* const place = new Place;  // as long as the process lives
  return *place;
}

/// With a device, a pass ends when the last batch is there.
template <class Loader>
Pass muster_pass(Loader loader) {
  if (!place().accelerator) {
    return [loader](const auto& f) {
      for (auto& batch : loader) f(batch);
    };
  }
  return [loader = place().accelerator->prepare(loader)](const auto& f) {
    for (auto& batch : loader) f(batch);
    const auto device = place().accelerator->device();
    if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
  };
}

template <class W>
Pass make_pass(const std::string& who, const W& work, int workers) {
  const muster::DataLoaderOptions options{
      .batch_size = W::kBatch, .prefetch = 4, .seed = 1, .shuffle = true, .workers = workers};
  if (who == "get") return muster_pass(muster::DataLoader(BySample<W>(work), options));
  if (who == "place") return muster_pass(muster::DataLoader(InPlace<W>{work}, options));
  if (who == "torch") return torch_pass(BySample<W>(work).map(torch::data::transforms::Stack<>()), W::kBatch, workers);
  if (who == "batch") return torch_pass(ByBatch<W>(work), W::kBatch, workers);
  auto order = std::make_shared<std::vector<size_t>>(W::kSize);
  std::iota(order->begin(), order->end(), 0);
  std::shuffle(order->begin(), order->end(), std::mt19937(1));
  return [work, order, threads = std::max(1, workers)](const auto&) {
    auto part = [&](int t) {
      BySample<W> own(work);
      for (std::size_t i = t; i < order->size(); i += threads) own.get((*order)[i]);
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(part, t);
    part(0);
    for (auto& thread : others) thread.join();
  };
}

struct Contender {
  Pass pass;
  double check = 0;
  int64_t samples = 0;
};

template <class W>
Contender make_contender(const std::string& who, int workers) {
  static const W work;
  Contender contender{make_pass(who, work, workers), 0, W::kSize};
  const auto plain = make_pass("get", work, 0);
  (who == "loop" ? plain : contender.pass)([&](const Example& batch) {
    contender.check +=
        batch.data.sum(torch::kDouble).item<double>() + 3 * batch.target.sum(torch::kDouble).item<double>();
  });
  return contender;
}

bench::Measured measure(const std::string& name) {
  static std::map<std::string, Contender> contenders;
  if (!contenders.contains(name)) {
    std::istringstream words(name);
    std::string who, workload;
    int workers = 0;
    words >> who >> workload >> workers;
    contenders[name] =
        workload == "images" ? make_contender<Images>(who, workers) : make_contender<Tokens>(who, workers);
  }
  const auto& contender = contenders.at(name);
  int64_t samples = 0;
  double seconds = 0;
  while (seconds < place().seconds) {
    seconds += bench::seconds([&] { contender.pass([](const Example&) {}); });
    samples += contender.samples;
  }
  return {static_cast<double>(samples) / seconds, contender.check};
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc > 1) place().accelerator.emplace(muster::AcceleratorOptions{.cpu = std::string(argv[1]) == "cpu"});
  if (argc > 2) place().seconds = 0.01;
  return bench::serve(measure);
}
