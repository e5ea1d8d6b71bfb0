#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::track {

/// Passwords, tokens and the like, which must not appear in any message or file of Muster.
class Secrets {
 public:
  void add(std::string_view secret) {
    if (!secret.empty()) secrets_.emplace_back(secret);
  }
  /// The text with *** in place of each secret.
  std::string hidden_in(std::string text) const {
    for (const auto& secret : secrets_)
      for (auto at = text.find(secret); at != std::string::npos; at = text.find(secret, at + 3))
        text.replace(at, secret.size(), "***");
    return text;
  }

 private:
  std::vector<std::string> secrets_;
};

}  // namespace muster::track
