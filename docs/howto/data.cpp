// The programs of data.md, compiled and run by the tests.
#include <cstdio>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <muster/data/combined.h>
#include <muster/data/loader.h>
#include <muster/data/options.h>
#include <muster/data/random.h>
#include <muster/data/sampler.h>
#include <muster/data/stream.h>
#include <muster/tree/stack.h>
#include <torch/torch.h>

int failed = 0, passed = 0;

void expect(const char* what, bool holds) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED %s\n", what);
}

struct Images {
  torch::Tensor bytes, labels;  // all of them, on the CPU
  int64_t size() const { return bytes.size(0); }
  void get_batch(std::span<const int64_t> indices, torch::data::Example<>& out) const {
    const auto n = static_cast<int64_t>(indices.size());
    muster::tree::ensure_tensor(out.data, {n, 3, 32, 32}, torch::kFloat);  // keeps the memory of an earlier batch
    muster::tree::ensure_tensor(out.target, {n}, torch::kLong);
    for (int64_t i = 0; i < n; ++i) {
      out.data[i].copy_(bytes[indices[i]]);
      out.target[i].copy_(labels[indices[i]]);
    }
  }
};

void in_place() {
  const Images images{torch::ones({10, 3, 32, 32}, torch::kByte), torch::arange(10)};
  int64_t seen = 0;
  for (auto& [image, label] : muster::DataLoader(images, {.batch_size = 4, .shuffle = true, .workers = 2}))
    seen += label.numel();
  expect("images", seen == 10);
}

struct Noisy {
  torch::Tensor rows;
  int64_t size() const { return rows.size(0); }
  torch::Tensor get(size_t i, muster::SampleRandom& random) const {
    const auto row = rows[static_cast<int64_t>(i)];
    return (random.uniform() < 0.5 ? row.flip(0) : row) + 0.01 * torch::randn({4});
  }
};

void random_transforms() {
  const Noisy noisy{torch::rand({6, 4})};
  const auto batches = [&](int workers) {
    std::vector<torch::Tensor> all;
    for (auto& batch : muster::DataLoader(noisy, {.batch_size = 2, .seed = 1, .workers = workers}))
      all.push_back(batch);
    return torch::cat(all);
  };
  expect("random transforms", batches(0).equal(batches(3)));
}

struct Lines {
  std::string text;
  std::istringstream in = {};
  Lines(std::string t) : text(std::move(t)) {}
  void start(int64_t) { in = std::istringstream(text); }  // a pass begins
  std::optional<std::string> next() {                     // called in order, by one thread at a time
    std::string line;
    return std::getline(in, line) ? std::optional(line) : std::nullopt;
  }
  int64_t transform(const std::string& line) const { return static_cast<int64_t>(line.size()); }  // by the workers
  std::string state() const { return std::to_string(static_cast<long>(const_cast<std::istringstream&>(in).tellg())); }
  void load_state(const std::string& saved) { in.seekg(std::stol(saved)); }
};

void streams() {
  int64_t letters = 0;
  for (auto& lengths : muster::DataLoader(Lines("a\nbb\nccc\n"), {.batch_size = 2, .workers = 2}))
    letters += lengths.sum().item<int64_t>();
  expect("lines", letters == 6);

  const std::vector<int64_t> values{3, 1, 4};
  auto stream = muster::map_stream([&](int64_t epoch) { return epoch % 2 ? std::vector<int64_t>{1} : values; },
                                   [](int64_t value) { return 2 * value; });
  int64_t sum = 0;
  for (auto& batch : muster::DataLoader(std::move(stream), {.batch_size = 2})) sum += batch.sum().item<int64_t>();
  expect("ranges", sum == 16);
}

void orders() {
  const auto images = torch::arange(4);
  const auto get = [&](int64_t i) { return images[i]; };
  muster::DataLoader often(get, 4, {.batch_size = 8});
  muster::DataLoader weighted(muster::data::Function{get, 4},
                              muster::WeightedRandomSampler({1, 1, 0, 6}, 100, /*seed=*/1), {.batch_size = 100});
  for (auto& batch : weighted) expect("weights", (batch == 2).sum().item<int64_t>() == 0 && batch.numel() == 100);
  muster::DataLoader listed(muster::data::Function{get, 4}, muster::BatchListSampler({{0, 1}, {2}, {3, 0, 1}}));
  int64_t sum = 0;
  for (auto& batch : listed) sum += batch.sum().item<int64_t>();
  expect("lists", sum == 7 && listed.size() == 3);
  expect("length", often.size() == 1);
}

void ready_batches() {
  std::vector<torch::data::Example<>> batches;  // made elsewhere, of any size
  batches.emplace_back(torch::ones({4, 2}), torch::zeros(4));
  batches.emplace_back(torch::ones({3, 2}), torch::zeros(3));
  muster::DataLoader loader(muster::from_batches(batches), {.shuffle = true});
  double sum = 0;
  for (auto& [data, target] : loader) sum += data.sum().item<double>();
  expect("ready-made batches", sum == 14 && loader.size() == 2);
}

void several() {
  const std::vector<int64_t> pictures{1, 2, 3}, texts{10, 20};
  muster::DataLoader a(pictures), b(texts);
  int64_t sum = 0;
  for (auto [picture, text] : muster::combine(muster::CombineMode::max_size_cycle, a, b))
    sum += (picture + text).item<int64_t>();
  expect("combined", sum == 6 + 40);
  for (auto step : muster::in_sequence(a, b)) step.visit([&](auto& batch) { sum -= batch.template item<int64_t>(); });
  expect("in sequence", sum == 46 - 36);
  for (auto [picture, text] : muster::combine_longest(a, b)) sum += text ? text->item<int64_t>() : 0;
  expect("until the longest ends", sum == 10 + 30);
}

int main() {
  in_place();
  random_transforms();
  streams();
  orders();
  ready_batches();
  several();
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed;
}
