#include "command_flags.h"

#include "commands.h"
#include "error_pages.h"

namespace muster::cli {

std::vector<options::Description> command_flags(std::string_view command) {
  for (const auto& one : commands())
    if (one.name == command && one.flags) return one.flags();
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
