#include "device/processor.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace muster::device {
namespace {

TEST(Processor, MultipliesInBfloat16WhereTheSystemSaysSo) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);)
    if (line.starts_with("flags") || line.starts_with("Features")) {
      std::istringstream words(line);
      for (std::string word; words >> word;) flags.insert(word);
    }
  if (flags.empty()) GTEST_SKIP() << "the system does not list what its processor can";
  EXPECT_EQ(multiplies_bfloat16(),
            flags.contains("avx512_bf16") || flags.contains("amx_bf16") || flags.contains("bf16"));
}

}  // namespace
}  // namespace muster::device
