#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/environment.h"
#include "muster/cluster/cluster.h"

/// Reads the families of launcher variables; private to src/cluster.
namespace muster::cluster {

/// A whole number in [low, high]. Throws: ConfigError (MU021) that names variable and value.
std::optional<int> read_number(const Environment& variables, std::string_view name, int low = 0, int high = 1 << 30);

/// The same for a variable that must be set because `because` is. Throws: ConfigError (MU020) if it is not.
int need_number(const Environment& variables, std::string_view name, std::string_view because, int low = 0,
                int high = 1 << 30);

/// The variables of `names` that are set.
std::vector<std::string> present(const Environment& variables, std::initializer_list<std::string_view> names);

inline constexpr std::string_view kVariables = "variables";

/// The names of a family's variables, for the messages of check_ranks(), and where they are found.
struct RankNames {
  std::string_view rank, world_size, local_rank, local_world_size;
  std::string_view source = kVariables;
};

/// Throws: ConfigError (MU022), naming the variables, if ranks, sizes and nodes contradict each other.
void check_ranks(const ClusterEnvironment& cluster, const RankNames& names);

/// The same for what a reader of the program returned; its numbers may be negative, and (MU340) its rendezvous absent.
void check_custom(const ClusterEnvironment& cluster);

/// Sets rendezvous, main_address and main_port from MASTER_ADDR and MASTER_PORT if the first is set; returns whether.
bool read_main_address(const Environment& variables, int default_port, ClusterEnvironment& cluster);

/// Sets a rendezvous by file, for one node: a file named after the job, in the user's private folder.
void use_file_rendezvous(ClusterEnvironment& cluster);

ClusterEnvironment read_torchrun(const Environment& variables);
ClusterEnvironment read_muster(const Environment& variables);
ClusterEnvironment read_plain(const Environment& variables);
ClusterEnvironment read_open_mpi(const Environment& variables);
ClusterEnvironment read_mvapich(const Environment& variables);
ClusterEnvironment read_pmi(const Environment& variables);
ClusterEnvironment read_slurm(const Environment& variables);

/// The role of this process according to SLURM's variables.
enum class SlurmPresence {
  none,   ///< no SLURM
  shell,  ///< an interactive shell, or the process of a batch script: a program in it runs alone
  task,   ///< a task started by srun
};
SlurmPresence find_slurm(const Environment& variables);

/// Tasks on node `node`, from SLURM's short form, such as "2(x3),1".
/// Throws: ConfigError (MU025) with the variable's name.
int tasks_on_node(std::string_view text, int node, std::string_view variable);

/// First host of a SLURM node list: "alpha[03-05,9],beta" is "alpha03".
/// Throws: ConfigError (MU025) with the variable's name.
std::string first_host(std::string_view list, std::string_view variable);

}  // namespace muster::cluster
