#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/process.h"

namespace muster::launcher::testing {

struct EndedCall {
  int code;
  std::string out, error;
};

/// A user whose configuration files are in a folder of their own.
class UserFolders {
 public:
  std::string write(const std::string& name, const std::string& text) const { return folder_.write(name, text, 0644); }
  const std::string& path() const { return folder_.path(); }
  /// Where `muster config` writes, and where `accelerate config` does.
  std::string ours() const { return path() + "/config/muster/config.yaml"; }
  std::string accelerates() const { return path() + "/hub/accelerate/default_config.yaml"; }
  /// Variables with which a machine has so many accelerators, whichever it has.
  std::vector<std::string> accelerators(int count) const;
  /// Calls muster with these words.
  EndedCall call(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                 const std::string& input = "") const;
  /// What `muster config show` prints with these flags: the value of each option, and "ranks". Fails if it does.
  std::map<std::string, std::string> shown(const std::vector<std::string>& flags,
                                           const std::vector<std::string>& environment = {}) const;

 private:
  Folder folder_;
};

/// Writes a file and makes its folder.
void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

}  // namespace muster::launcher::testing
