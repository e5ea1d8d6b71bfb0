#include <cstdio>
#include <filesystem>
#include <fstream>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "commands.h"
#include "muster/base/error.h"
#include "parse.h"
#include "project_files.h"
#include "shell_word.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

void refuse_name(const std::string& name) {
  if (name.empty()) throw UsageError("MU309", "the name of the folder is empty; give a name: muster new train");
  if (name.starts_with("-"))
    throw UsageError("MU309", "cmake would take the folder '" + name + "' for a flag; give another name, or ./" + name);
}

void refuse_what_is_there(const fs::path& folder) {
  std::error_code error;
  const auto status = fs::status(folder, error);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) && fs::is_empty(folder, error) && !error) return;
  throw UsageError("MU336", "muster new writes into a folder that is new or empty, and " + folder.string() +
                                (fs::is_directory(status) ? " is not empty" : " is a file") + "; give another name");
}

void write(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  for (const auto& file : project_files()) {
    std::ofstream to(folder / file.name, std::ios::binary);
    to << file.text;
    to.close();
    if (error || !to)
      throw UsageError("MU337", "cannot write " + (folder / file.name).string() +
                                    "; check the folder, its permissions and its disk");
  }
}

/// The value of an entry in CMake's cache; empty if there is none.
std::string cached(const fs::path& cache, std::string_view entry) {
  std::ifstream from(cache);
  for (std::string line; std::getline(from, line);)
    if (line.starts_with(entry)) return line.substr(entry.size());
  return "";
}

/// The arguments with which CMake finds this program's Muster; empty if CMake finds it by itself.
std::string where_muster_is() {
  std::error_code error;
  const auto prefix = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  if (error) return "";
  const auto source = cached(prefix / "CMakeCache.txt", "muster_SOURCE_DIR:STATIC=");
  if (!source.empty()) return " -DMUSTER_SOURCE=" + shell_word(source);
  return prefix == "/usr" || prefix == "/usr/local" ? "" : " -DCMAKE_PREFIX_PATH=" + shell_word(prefix.string());
}

}  // namespace

int new_project(const Arguments& arguments) {
  CLI::App app("Writes a small project that trains: CMakeLists.txt, main.cpp, .gitignore and README.md.", "muster new");
  std::string name;
  app.add_option("FOLDER", name, "folder to write, new or empty")->required();
  if (parse(app, arguments)) return 0;
  refuse_name(name);
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const fs::path folder = name;
  refuse_what_is_there(folder);
  write(folder);
  const auto build = shell_word(name + "/build"), program = shell_word(name + "/build/train");
  std::printf("%s has a program that trains. Next:\n", name.c_str());
  std::printf("  cmake -S %s -B %s -DCMAKE_BUILD_TYPE=Release%s\n", shell_word(name).c_str(), build.c_str(),
              where_muster_is().c_str());
  std::printf("  cmake --build %s\n  muster run --devices 2 %s\n", build.c_str(), program.c_str());
  return 0;
}

}  // namespace muster::cli
