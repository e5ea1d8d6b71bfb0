#include "command_flags.h"

#include "accelerate_names.h"
#include "commands.h"
#include "error_pages.h"
#include "launch_call.h"
#include "run_flags.h"

namespace muster::cli {

std::vector<options::Description> command_flags(std::string_view command) {
  if (command == "run") {
    auto flags = all_options();
    flags.push_back({.name = "config", .help = "YAML file of options", .variable = "MUSTER_CONFIG", .type = "file"});
    return flags;
  }
  if (command == "launch") return LaunchFlags::all();
  if (command == "config")
    return {{.name = "default", .help = "no questions; never replaces a file", .is_switch = true},
            {.name = "config_file", .help = "the file to write or read"},
            {.name = "mixed_precision", .help = "with --default: no, fp16 or bf16"}};
  if (command == "track")
    return {{.name = "timeout", .help = "how long a server that cannot be used is asked", .default_text = "1min"},
            {.name = "tracking_uri", .help = "MLflow's server, if it has moved since the run"}};
  return {};
}

std::vector<std::string> command_words(std::string_view command) {
  if (command == "completion") return {"bash", "zsh", "fish"};
  if (command == "config") return {"show", "update", "path", "default"};
  if (command == "submit") return {"slurm", "kubernetes", "sagemaker"};
  if (command == "options") return {"run", "options"};
  if (command == "track") return {"upload"};
  std::vector<std::string> words;
  if (command == "explain")
    for (const auto& page : error_pages()) words.emplace_back(page.id);
  if (command == "man")
    for (const auto& one : commands()) words.emplace_back(one.name);
  return words;
}

}  // namespace muster::cli
