#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::options {
struct Description;
}

namespace muster::cli {

using Arguments = std::vector<std::string>;

/// A subcommand: gets the arguments after its name, and returns the exit code.
struct Command {
  std::string_view name;
  std::string_view help;
  int (*run)(const Arguments& arguments);
  std::vector<options::Description> (*flags)() = nullptr;  ///< flags for completion and manual pages; null: only --help
};

/// All subcommands, in the order of the help.
std::span<const Command> commands();

int run(const Arguments& arguments);
int complete(const Arguments& arguments);
int configure(const Arguments& arguments);
int consolidate(const Arguments& arguments);
int convert(const Arguments& arguments);
int explain(const Arguments& arguments);
int launch(const Arguments& arguments);
int new_project(const Arguments& arguments);
int print_env(const Arguments& arguments);
int print_man_page(const Arguments& arguments);
int print_options(const Arguments& arguments);
int self_test(const Arguments& arguments);
int show(const Arguments& arguments);
int submit(const Arguments& arguments);
int track(const Arguments& arguments);

std::vector<options::Description> config_flags();
std::vector<options::Description> consolidate_flags();
std::vector<options::Description> convert_flags();
std::vector<options::Description> launch_flags();
std::vector<options::Description> run_flags();
std::vector<options::Description> show_flags();
std::vector<options::Description> submit_flags();
std::vector<options::Description> test_flags();
std::vector<options::Description> track_flags();

}  // namespace muster::cli
