#include "options/launcher_fields.h"

#include "base/options_text.h"
#include "options/words.h"

namespace muster {

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
    options::OptionsOf<RunOptions> made;
    made.add(MUSTER_FIELD(accelerator), "kind of device for the ranks: cpu, cuda, gpu or auto",
             "Run.EveryRankLearnsWhoItIs");
    made.add(
        MUSTER_FIELD(devices),
        "ranks on this node: a count, a list of accelerators such as 0,2, or auto (all accelerators, else one rank)",
        "Run.EveryRankLearnsWhoItIs", {.takes_list = true});
    made.add(MUSTER_FIELD(main_address), "host of rank 0, needed for several nodes",
             "Nodes.SeveralNodesMeetWhereTheyWereTold");
    made.add(MUSTER_FIELD(main_port), "port on the host of rank 0; 0 is a free one on one node, 29400 on several",
             "Run.RefusesBeforeAnythingStarts");
    made.add(MUSTER_FIELD(node_rank), "number of this node, from 0", "RankEnvironment.IsReadBackAsTheRankThatWasMeant");
    made.add(MUSTER_FIELD(nodes), "number of nodes, or a minimum and a maximum, such as 1:4",
             "RankEnvironment.IsReadBackAsTheRankThatWasMeant", {.aliases = {"num_nodes"}});
    made.add(MUSTER_FIELD(secret_file),
             "file of mode 0600 with the job's secret, the same on all nodes; on one node a new secret is made",
             "Run.TheSecretOfAFileIsHandedOn");
    made.add(MUSTER_FIELD(fork_ranks),
             "fork the ranks from one process that has loaded the program, if it links Muster",
             "ForkServer.RanksAreForkedUnlessSwitchedOff");
    made.add(MUSTER_FIELD(grace), "time between the request to end and the kill after a rank has failed",
             "WatchFailure.EndsAllWithTheRootCause");
    made.add(MUSTER_FIELD(log_dir), "folder for a file rank_<r>.log per rank", "Console.EachRankHasALogFile");
    made.add(MUSTER_FIELD(max_restarts),
             "how often all ranks are started again after one has failed or a node was lost",
             "Restarts.AWorldIsStartedAgainUntilItSucceeds");
    made.add(MUSTER_FIELD(options), "options of the program in one line, such as precision=bf16-mixed,fsdp.stage=full",
             "Run.OneLineOfOptionsReachesTheRanks");
    made.add(MUSTER_FIELD(prefix), "put [rank] before each line of output", "Console.PrefixesCanBeTurnedOff");
    made.add(MUSTER_FIELD(threads), "OMP_NUM_THREADS of each rank; 0 shares the cores out unless the variable is set",
             "RankEnvironment.CoresAreSharedOutUnlessTold");
    made.add(MUSTER_FIELD(heartbeat_timeout), "a node whose launcher gives no sign of life for so long is lost",
             "SeveralNodes.ALauncherThatHangsIsLost");
    made.add(MUSTER_FIELD(join_timeout), "how long launchers wait until enough nodes are there",
             "SeveralNodes.TooFewNodesEndTheJob");
    made.add(MUSTER_FIELD(last_call_timeout), "how long launchers wait for more nodes once the least number is there",
             "SeveralNodes.ALostNodeLeavesASmallerWorld");
    for (auto& one : made.options) one.description.other_tools = options::foreign_variables(one.description);
    return std::move(made).table("run");
  }();
  return table;
}

}  // namespace muster
