// The programs of resume.md, compiled and run by the tests.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <muster/data/loader.h>

int failed = 0, passed = 0;

void expect(const char* what, bool holds) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED %s\n", what);
}

struct Numbers {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() { return at < 1000 ? std::optional(at++) : std::nullopt; }
  std::string state() const { return std::to_string(at); }
  void load_state(const std::string& saved) { at = std::stoll(saved); }
};

template <class Data>
void resume(const char* what, const Data& data, muster::DataLoaderOptions options) {
  std::vector<int64_t> uninterrupted, before, after;
  auto values = [](const at::Tensor& batch) { return batch.sum().item<int64_t>(); };
  for (auto& batch : muster::DataLoader(Data(data), options)) uninterrupted.push_back(values(batch));

  muster::LoaderPosition saved;
  {
    muster::DataLoader loader(Data(data), options);
    for (auto& batch : loader) {
      before.push_back(values(batch));
      if (before.size() == 3) {
        saved = loader.save_position();  // epoch, samples handed out, seed, and the dataset's own state
        break;
      }
    }
  }
  muster::DataLoader loader(Data(data), options);
  loader.load_position(saved);
  for (auto& batch : loader) after.push_back(values(batch));
  before.insert(before.end(), after.begin(), after.end());
  expect(what, before == uninterrupted && loader.epoch() == saved.epoch + 1);
}

void skip() {
  const std::vector<int64_t> data{0, 1, 2, 3, 4, 5};
  muster::DataLoader loader(data, {.batch_size = 2});
  std::vector<int64_t> first;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto& batch : epoch == 0 ? muster::skip_first_batches(loader, 2) : loader)
      first.push_back(batch[0].item<int64_t>());
  expect("skip", first == std::vector<int64_t>{4, 0, 2, 4});
}

int main() {
  std::vector<int64_t> data(1000);
  for (int64_t i = 0; i < 1000; ++i) data[i] = i * i;
  resume("shuffled", data, {.batch_size = 64, .seed = 1, .shuffle = true});
  resume("with workers", data, {.batch_size = 64, .seed = 1, .shuffle = true, .workers = 2});
  resume("a stream", Numbers(), {.batch_size = 64, .workers = 2});
  skip();
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed;
}
