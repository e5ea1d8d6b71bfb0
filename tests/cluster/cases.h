#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/cluster/cluster.h"

namespace muster::cluster::testing {

/// All of a cluster in one line, so that a table of cases stays readable:
/// "torchrun 1/4 local 1/2 node 0/2 tcp host:29500 restarts 0".
inline std::string words(const ClusterEnvironment& cluster) {
  std::ostringstream text;
  text << to_string(cluster.launcher) << " " << cluster.rank << "/" << cluster.world_size << " local "
       << cluster.local_rank << "/" << cluster.local_world_size << " node " << cluster.node_rank << "/"
       << cluster.nodes;
  if (cluster.rendezvous == RendezvousKind::tcp) text << " tcp " << cluster.main_address << ":" << cluster.main_port;
  if (cluster.rendezvous == RendezvousKind::file) text << " file " << cluster.store_path;
  if (cluster.store_is_external) text << " external";
  if (cluster.restart_count) text << " restarts " << cluster.restart_count;
  if (cluster.store_listen_fd >= 0) text << " fd " << cluster.store_listen_fd;
  if (cluster.device_index >= 0) text << " device " << cluster.device_index;
  return text.str();
}

struct Reading {
  Environment variables;
  std::string wanted;
};

inline void check_readings(const std::vector<Reading>& readings) {
  for (const auto& reading : readings) {
    std::string got;
    try {
      got = words(read_cluster_environment(reading.variables));
    } catch (const Error& error) {
      got = error.what();
    }
    EXPECT_EQ(got, reading.wanted);
  }
}

/// A reading that is refused: the id, and words that the message must hold, names of variables above all.
struct Refusal {
  Environment variables;
  std::string id;
  std::vector<std::string> words;
};

inline void check_refusals(const std::vector<Refusal>& refusals) {
  for (const auto& refusal : refusals) {
    try {
      ADD_FAILURE() << "read as " << words(read_cluster_environment(refusal.variables));
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), refusal.id) << error.what();
      for (const auto& word : refusal.words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << word << " is missing in: " << error.what();
    }
  }
}

/// The variables with others set or, where the value is empty, unset.
inline Environment with(Environment variables, const std::vector<std::pair<std::string, std::string>>& changes) {
  for (const auto& [name, value] : changes) variables.set(name, value);
  return variables;
}

/// A new empty folder, removed at the end, for files that variables name.
class CaseFolder {
 public:
  CaseFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "muster-cluster-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  CaseFolder(const CaseFolder&) = delete;
  CaseFolder& operator=(const CaseFolder&) = delete;
  ~CaseFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  /// Writes a file, in folders that are made; returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace muster::cluster::testing
