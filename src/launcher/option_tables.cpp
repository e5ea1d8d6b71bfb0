#include "muster/launcher/detail/option_tables.h"

#include "muster/cluster/detail/variables.h"

namespace muster {

const options::Table<RunOptions>& run_option_table() {
  using options::option;
  static const options::Table<RunOptions> table{
      "run",
      {
          option("accelerator", &RunOptions::accelerator,
                 {.help = "kind of device for the ranks: cpu, cuda, gpu or auto", .variable = cluster::kAccelerator}),
          option("devices", &RunOptions::devices,
                 {.help = "ranks on this node: a count, a list of accelerators such as 0,2, or auto (all accelerators, "
                          "else one rank)",
                  .variable = "MUSTER_DEVICES"}),
          option("fsdp", &RunOptions::fsdp,
                 {.help = "options of sharded training for the program, such as unit_classes=Block,stage=gradients",
                  .variable = cluster::kSharding}),
          option("grace", &RunOptions::grace,
                 {.help = "time between the request to end and the kill after a rank has failed",
                  .unit = "duration",
                  .variable = "MUSTER_GRACE"}),
          option("log_dir", &RunOptions::log_dir,
                 {.help = "folder for a file rank_<r>.log per rank", .variable = "MUSTER_LOG_DIR"}),
          option("main_address", &RunOptions::main_address,
                 {.help = "host of rank 0, needed for several nodes", .variable = "MUSTER_MAIN_ADDRESS"}),
          option("main_port", &RunOptions::main_port,
                 {.help = "port on the host of rank 0; 0 is a free one on one node, 29400 on several",
                  .variable = "MUSTER_MAIN_PORT"}),
          option("node_rank", &RunOptions::node_rank,
                 {.help = "number of this node, from 0", .variable = "MUSTER_NODE_RANK"}),
          option("nodes", &RunOptions::nodes, {.help = "number of nodes", .variable = "MUSTER_NODES"}),
          option("precision", &RunOptions::precision,
                 {.help = "precision for the program, such as bf16-mixed", .variable = cluster::kPrecision}),
          option("prefix", &RunOptions::prefix,
                 {.help = "put [rank] before each line of output", .variable = "MUSTER_PREFIX"}),
          option(
              "secret_file", &RunOptions::secret_file,
              {.help =
                   "file of mode 0600 with the job's secret, the same on all nodes; on one node a new secret is made",
               .variable = cluster::kSecretFile}),
          option("strategy", &RunOptions::strategy,
                 {.help = "strategy for the program, such as ddp or fsdp", .variable = cluster::kStrategy}),
          option("threads", &RunOptions::threads,
                 {.help = "OMP_NUM_THREADS of each rank; 0 shares the cores out unless the variable is set",
                  .variable = "MUSTER_THREADS"}),
          option("timeout", &RunOptions::timeout,
                 {.help = "limit for each collective and for the meeting of the ranks; 0 leaves it to the program",
                  .unit = "seconds",
                  .variable = cluster::kTimeout}),
      }};
  return table;
}

}  // namespace muster
