#include "launcher/config_calls.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace muster::launcher::testing {

std::vector<std::string> UserFolders::accelerators(int count) const {
  const auto root = path() + "/with" + std::to_string(count);
  for (int index = 0; index < count; ++index)
    std::filesystem::create_directories(root + "/proc/driver/nvidia/gpus/" + std::to_string(index));
  return {"CUDA_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=", "MUSTER_TEST_ROOT=" + root};
}

EndedCall UserFolders::call(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                            const std::string& input) const {
  Process::Setup setup;
  setup.environment = {"XDG_CONFIG_HOME=" + path() + "/config", "HF_HOME=" + path() + "/hub", "MUSTER_CONFIG="};
  setup.environment.insert(setup.environment.end(), environment.begin(), environment.end());
  setup.input = input;
  std::vector<std::string> command{MUSTER_BINARY_DIR "/bin/muster"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Process process(command, setup);
  const int code = process.wait();
  return {code, process.out(), process.error()};
}

std::map<std::string, std::string> UserFolders::shown(const std::vector<std::string>& flags,
                                                      const std::vector<std::string>& environment) const {
  std::vector<std::string> arguments{"config", "show", "--all"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const auto ended = call(arguments, environment);
  EXPECT_EQ(ended.code, 0) << ended.error;
  std::map<std::string, std::string> values;
  std::istringstream lines(ended.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, value;
    words >> name >> value;
    values[name] = value;
  }
  return values;
}

void write_file(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace muster::launcher::testing
