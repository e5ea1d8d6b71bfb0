#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>

namespace bench {

/// What one measurement found. `check` must agree between contenders, or the figure counts for nothing.
struct Measured {
  double value = 0;      ///< in the unit of the benchmark's table
  double check = 0;      ///< a result of the measured work, such as the last loss
  bool verified = true;  ///< false: the work itself saw a wrong result
};

/// Seconds that `f` takes.
template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Where the driver asks and is answered: the standard streams or, under a launcher, which has those for itself, the
/// pipes ask.RANK and answer.RANK in the folder that the variable BENCH_PIPES names.
class Driver {
 public:
  Driver() {
    const char* folder = std::getenv("BENCH_PIPES");
    if (!folder) return;
    const char* rank = std::getenv("RANK");
    const std::string end = rank ? rank : "0";
    pipe_.open(std::string(folder) + "/ask." + end);
    answers_ = std::fopen((std::string(folder) + "/answer." + end).c_str(), "w");
    if (!pipe_ || !answers_) throw std::runtime_error(std::string("cannot open the driver's pipes in ") + folder);
  }
  bool next(std::string& line) { return static_cast<bool>(std::getline(pipe_.is_open() ? pipe_ : std::cin, line)); }
  std::FILE* answers() const { return answers_; }

 private:
  std::ifstream pipe_;
  std::FILE* answers_ = stdout;
};

/// Answers the driver: one line of JSON for each line "run CASE".
/// Start-up and warm-up are paid before the first answer, not in every round.
inline int serve(const std::function<Measured(const std::string&)>& measure) {
  Driver driver;
  std::string line;
  while (driver.next(line)) {
    if (line.rfind("run ", 0) != 0) continue;
    const std::string name = line.substr(4);
    try {
      const Measured m = measure(name);
      std::fprintf(driver.answers(), "{\"case\": \"%s\", \"value\": %.9g, \"check\": %.9g, \"verified\": %s}\n",
                   name.c_str(), m.value, m.check, m.verified && std::isfinite(m.check) ? "true" : "false");
    } catch (const std::exception& error) {
      std::fprintf(driver.answers(), "{\"case\": \"%s\", \"verified\": false, \"error\": \"failed\"}\n", name.c_str());
      std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    }
    std::fflush(driver.answers());
  }
  return 0;
}

}  // namespace bench
