#include "deepspeed_names.h"

#include <algorithm>

#include "accelerate_names.h"

namespace muster::cli {
namespace {

/// The description of a key in the reference.
std::string described_key(const ForeignWord& key) {
  using enum Follow;
  const std::string text(key.text), unless = key.accepted.empty() ? "" : " unless " + std::string(key.accepted);
  switch (key.follow) {
    case in_code: return "as Accelerate's " + text;
    case ignored: return "no effect: " + text;
    case warned: return "no effect" + unless + ", which a line says: " + text;
    default: return "refused" + unless + ": " + text;
  }
}

}  // namespace

const ForeignWord* find_deepspeed_key(std::string_view name) {
  const ForeignWord* section = nullptr;
  for (const auto& key : options::foreign_words(options::Place::deepspeed)) {
    if (key.word == name) return &key;
    if (key.word.ends_with('.') && name.starts_with(key.word)) section = &key;
  }
  return section;
}

std::vector<std::string> deepspeed_keys_of(std::string_view section) {
  const auto begin = section.empty() ? std::string() : std::string(section) + ".";
  std::vector<std::string> names;
  for (const auto& key : options::foreign_words(options::Place::deepspeed)) {
    if (!key.word.starts_with(begin) || key.word.size() == begin.size()) continue;
    const auto rest = key.word.substr(begin.size());
    std::string name(rest.substr(0, rest.find('.')));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

std::string deepspeed_markdown() {
  std::string result = "| key | followed as |\n|---|---|\n";
  for (const auto& key : options::foreign_words(options::Place::deepspeed))
    result +=
        "| `" + std::string(key.word) + (key.word.ends_with('.') ? "*" : "") + "` | " + described_key(key) + " |\n";
  return result;
}

}  // namespace muster::cli
