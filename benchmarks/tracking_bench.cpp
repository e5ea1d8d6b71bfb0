// What the training thread pays for logging ten numbers per step. Argument: a folder for the files. Cases: a tracker's
// name, or "limit".
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/track/trackers.h"
#include "protocol.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr int kSteps = 2000, kWarmUp = 100, kNumbers = 10;
constexpr auto kRestOfStep = std::chrono::microseconds(200);
constexpr double kLimit = 25;  // microseconds

/// Keeps the core busy, as the rest of a training step would.
void compute() {
  for (const auto end = Clock::now() + kRestOfStep; Clock::now() < end;) {}
}

int64_t count(std::string_view text, std::string_view what) {
  int64_t found = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + what.size())) ++found;
  return found;
}

/// Steps in the file that a tracker wrote.
int64_t written(const fs::path& folder, const std::string& tracker) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name != "metrics." + tracker && !(tracker == "tensorboard" && name.find("tfevents") != name.npos)) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return tracker == "csv" ? count(text, "\n") - 1 : count(text, "train/9");
  }
  return 0;
}

bench::Measured measure(const std::string& tracker, const fs::path& root) {
  constexpr int kAll = kWarmUp + kSteps;
  if (tracker == "limit") return {.value = kLimit, .check = kAll};
  fs::remove_all(root / tracker);
  muster::Trackers trackers({.log_with = {tracker}, .name = tracker, .root = root});
  std::vector<std::pair<std::string, double>> values;
  for (int i = 0; i < kNumbers; ++i) values.emplace_back("train/" + std::to_string(i), 0);
  double total = 0;
  for (int step = 0; step < kAll; ++step) {
    compute();
    for (auto& [name, value] : values) value = 1.0 / (step + 1);
    const double seconds = bench::seconds([&] { trackers.log(values, step); });
    if (step >= kWarmUp) total += seconds;
  }
  trackers.finish();
  return {.value = total / kSteps * 1e6, .check = static_cast<double>(written(trackers.folder(), tracker))};
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path root = argc > 1 ? argv[1] : "tracking_bench";
  return bench::serve([&](const std::string& name) { return measure(name, root); });
}
