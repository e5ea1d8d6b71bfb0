#include "options/launcher_fields.h"

#include "base/options_text.h"
#include "base/variables.h"
#include "options/words.h"

namespace muster {
namespace {

using options::option;

std::vector<options::Option<RunOptions>> placement_options() {
  return {
      option("accelerator", &RunOptions::accelerator,
             {.help = "kind of device for the ranks: cpu, cuda, gpu or auto",
              .variable = "MUSTER_ACCELERATOR",
              .tested_by = "Run.EveryRankLearnsWhoItIs"}),
      option("devices", &RunOptions::devices,
             {.help = "ranks on this node: a count, a list of accelerators such as 0,2, or auto (all accelerators, "
                      "else one rank)",
              .variable = "MUSTER_DEVICES",
              .tested_by = "Run.EveryRankLearnsWhoItIs",
              .takes_list = true}),
      option("main_address", &RunOptions::main_address,
             {.help = "host of rank 0, needed for several nodes",
              .variable = "MUSTER_MAIN_ADDRESS",
              .tested_by = "Nodes.SeveralNodesMeetWhereTheyWereTold"}),
      option("main_port", &RunOptions::main_port,
             {.help = "port on the host of rank 0; 0 is a free one on one node, 29400 on several",
              .variable = "MUSTER_MAIN_PORT",
              .tested_by = "Run.RefusesBeforeAnythingStarts"}),
      option("node_rank", &RunOptions::node_rank,
             {.help = "number of this node, from 0",
              .variable = "MUSTER_NODE_RANK",
              .tested_by = "RankEnvironment.IsReadBackAsTheRankThatWasMeant"}),
      option("nodes", &RunOptions::nodes,
             {.help = "number of nodes, or a minimum and a maximum, such as 1:4",
              .variable = "MUSTER_NODES",
              .aliases = {"num_nodes"},
              .tested_by = "RankEnvironment.IsReadBackAsTheRankThatWasMeant"}),
      option(
          "secret_file", &RunOptions::secret_file,
          {.help = "file of mode 0600 with the job's secret, the same on all nodes; on one node a new secret is made",
           .variable = cluster::kSecretFile,
           .tested_by = "Run.TheSecretOfAFileIsHandedOn"}),
  };
}

std::vector<options::Option<RunOptions>> process_options() {
  return {
      option("fork_ranks", &RunOptions::fork_ranks,
             {.help = "fork the ranks from one process that has loaded the program, if it links Muster",
              .variable = cluster::kForkRanks,
              .tested_by = "ForkServer.RanksAreForkedUnlessSwitchedOff"}),
      option("grace", &RunOptions::grace,
             {.help = "time between the request to end and the kill after a rank has failed",
              .variable = "MUSTER_GRACE",
              .tested_by = "WatchFailure.EndsAllWithTheRootCause"}),
      option("log_dir", &RunOptions::log_dir,
             {.help = "folder for a file rank_<r>.log per rank",
              .variable = "MUSTER_LOG_DIR",
              .tested_by = "Console.EachRankHasALogFile"}),
      option("max_restarts", &RunOptions::max_restarts,
             {.help = "how often all ranks are started again after one has failed or a node was lost",
              .variable = "MUSTER_MAX_RESTARTS",
              .tested_by = "Restarts.AWorldIsStartedAgainUntilItSucceeds"}),
      option("options", &RunOptions::options,
             {.help = "options of the program in one line, such as precision=bf16-mixed,fsdp.stage=full",
              .variable = options::kLineVariable,
              .tested_by = "Run.OneLineOfOptionsReachesTheRanks"}),
      option("prefix", &RunOptions::prefix,
             {.help = "put [rank] before each line of output",
              .variable = "MUSTER_PREFIX",
              .tested_by = "Console.PrefixesCanBeTurnedOff"}),
      option("threads", &RunOptions::threads,
             {.help = "OMP_NUM_THREADS of each rank; 0 shares the cores out unless the variable is set",
              .variable = "MUSTER_THREADS",
              .tested_by = "RankEnvironment.CoresAreSharedOutUnlessTold"}),
  };
}

/// Options for several nodes with a rendezvous: with max_restarts, or a range of nodes.
std::vector<options::Option<RunOptions>> rendezvous_options() {
  return {
      option("heartbeat_timeout", &RunOptions::heartbeat_timeout,
             {.help = "a node whose launcher gives no sign of life for so long is lost",
              .variable = "MUSTER_HEARTBEAT_TIMEOUT",
              .tested_by = "SeveralNodes.ALauncherThatHangsIsLost"}),
      option("join_timeout", &RunOptions::join_timeout,
             {.help = "how long launchers wait until enough nodes are there",
              .variable = "MUSTER_JOIN_TIMEOUT",
              .tested_by = "SeveralNodes.TooFewNodesEndTheJob"}),
      option("last_call_timeout", &RunOptions::last_call_timeout,
             {.help = "how long launchers wait for more nodes once the least number is there",
              .variable = "MUSTER_LAST_CALL_TIMEOUT",
              .tested_by = "SeveralNodes.ALostNodeLeavesASmallerWorld"}),
  };
}

}  // namespace

std::string options::Value<NodeRange>::read(const std::string& text, NodeRange& value) {
  const auto colon = text.find(':');
  NodeRange result;
  auto wanted = Value<int>::read(text.substr(0, colon), result.min);
  if (colon == std::string::npos) result.max = result.min;
  else if (wanted.empty()) wanted = Value<int>::read(text.substr(colon + 1), result.max);
  if (!wanted.empty()) return "a number of nodes, or a minimum and a maximum, such as 1:4,";
  value = result;
  return "";
}

std::string options::Value<NodeRange>::write(const NodeRange& value) {
  const auto min = std::to_string(value.min);
  return value.min == value.max ? min : min + ":" + std::to_string(value.max);
}

const options::Table<RunOptions>& run_option_table() {
  static const options::Table<RunOptions> table = [] {
    options::Table<RunOptions> made{"run", placement_options()};
    for (auto* part : {&process_options, &rendezvous_options})
      for (auto& one : part()) made.options.push_back(std::move(one));
    for (auto& one : made.options) one.description.other_tools = options::foreign_variables(one.description);
    return made;
  }();
  return table;
}

}  // namespace muster
