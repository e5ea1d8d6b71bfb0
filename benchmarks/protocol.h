#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <string>

namespace bench {

/// What one measurement found. `check` must agree between contenders, or the figure counts for nothing.
struct Measured {
  double value = 0;       ///< in the unit of the benchmark's table
  double check = 0;       ///< a result of the measured work, such as the last loss
  bool verified = true;   ///< false: the work itself saw a wrong result
};

/// Seconds that `f` takes.
template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Answers the driver: for each line "run CASE" on standard input, one line of JSON on standard output.
/// Start-up and warm-up are paid before the first answer, not in every round.
inline int serve(const std::function<Measured(const std::string&)>& measure) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.rfind("run ", 0) != 0) continue;
    const std::string name = line.substr(4);
    try {
      const Measured m = measure(name);
      std::printf("{\"case\": \"%s\", \"value\": %.9g, \"check\": %.9g, \"verified\": %s}\n", name.c_str(), m.value, m.check,
                  m.verified && std::isfinite(m.check) ? "true" : "false");
    } catch (const std::exception& error) {
      std::printf("{\"case\": \"%s\", \"verified\": false, \"error\": \"failed\"}\n", name.c_str());
      std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench
