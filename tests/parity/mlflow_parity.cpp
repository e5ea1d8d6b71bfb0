// Logs a run to MLflow, for mlflow_parity.py: mlflow_parity ROOT PNG STEPS [exit|killed]
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "muster/track/trackers.h"

int main(int count, char** arguments) {
  if (count < 4) return 2;
  std::ifstream file(arguments[2], std::ios::binary);
  const std::vector<uint8_t> png{std::istreambuf_iterator<char>(file), {}};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // A run before it, as a reason to do something at exit before libcurl has one.
  muster::Trackers before({.root = arguments[1]});
  muster::Trackers trackers({.log_with = {"csv", "mlflow"},
                             .mlflow = {.tags = {{"team", "vision"}}},
                             .name = "digits",
                             .root = arguments[1],
                             .version = "run"});
  trackers.log_hyperparams({{"deep", true}, {"empty", ""}, {"lr", 1e-5}, {"net", "mlp: \"a\"\n"}, {"width", 64}});
  trackers.log_hyperparams({{"text", std::string(7000, 'x')}});
  for (int64_t step = 0; step < std::atoll(arguments[3]); ++step)
    trackers.log({{"train/loss", 1.0 / static_cast<double>(step + 1)}, {"seen", step * 16}}, step);
  trackers.log({{"nan", std::numeric_limits<double>::quiet_NaN()}, {"inf", kInfinity}, {"low", -kInfinity}}, 5);
  trackers.log({{"acc@1", 0.5}, {"\xc3\xa9t\xc3\xa9", 2}, {"note", "some text"}}, int64_t{1} << 40);
  trackers.log({{"sample", muster::PngImage{png}}}, 7);
  trackers.log_artifact(arguments[2], "plots/sample.png");
  const std::string end = count > 4 ? arguments[4] : "";
  if (end == "exit") std::exit(0);
  if (end == "killed") {
    trackers.flush();
    std::raise(SIGKILL);
  }
  trackers.finish();
  std::puts(trackers.folder().c_str());
  return 0;
}
