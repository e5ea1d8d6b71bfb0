// Writes a run with every tracker of files, for tensorboard_parity.py: tensorboard_parity ROOT PNG
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "muster/track/trackers.h"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  std::ifstream file(arguments[2], std::ios::binary);
  const std::vector<uint8_t> png{std::istreambuf_iterator<char>(file), {}};
  std::vector<double> numbers;
  for (int i = 0; i < 1000; ++i) numbers.push_back(std::sin(i * 0.37));
  const auto histogram = muster::make_histogram(numbers, 20);

  muster::Trackers trackers(
      {.log_with = {"csv", "jsonl", "tensorboard"}, .name = "parity", .root = arguments[1], .version = "run"});
  trackers.log_hyperparams({{"deep", true}, {"lr", 1e-5}, {"net", "mlp: \"a\"\n"}, {"width", 64}, {"no", "yes"}});
  for (int step = 0; step < 100; ++step) {
    trackers.log({{"train/loss", 1.0 / (step + 1)}, {"train/seen", step * 16}}, step);
    if (step % 50 == 49) trackers.log({{"val/loss", std::cos(step)}, {"note", "after *step*, \"quoted\"\nline"}}, step);
  }
  trackers.log({{"sample", muster::PngImage{png}}, {"weights", histogram}}, 7);
  trackers.log({{"odd", std::numeric_limits<double>::infinity()}}, int64_t{1} << 40);
  trackers.finish();
  std::puts(trackers.folder().c_str());
  return 0;
}
