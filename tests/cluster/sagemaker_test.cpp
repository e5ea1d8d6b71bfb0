#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

const Environment kToolkit{{"SM_HOSTS", R"(["algo-10","algo-2","algo-1"])"}, {"SM_CURRENT_HOST", "algo-2"}};

/// As in a container without SageMaker's toolkit.
Environment bare(const CaseFolder& folder, const std::string& config) {
  folder.write("input/config/resourceconfig.json", config);
  return {{"TRAINING_JOB_ARN", "arn:aws:sagemaker:job/train"},
          {"TRAINING_JOB_NAME", "train"},
          {"SAGEMAKER_BASE_DIR", folder.path()}};
}

TEST(SageMaker, TheToolkitsVariablesAreRead) {
  check_readings({
      {kToolkit, "sagemaker 1/3 local 0/1 node 1/3 tcp algo-1:29500"},
      {with(kToolkit, {{"SM_CURRENT_HOST", "algo-10"}}), "sagemaker 2/3 local 0/1 node 2/3 tcp algo-1:29500"},
      {with(kToolkit, {{"MASTER_ADDR", "algo-2"}, {"MASTER_PORT", "7777"}}),
       "sagemaker 1/3 local 0/1 node 1/3 tcp algo-2:7777"},
      {with(kToolkit, {{"SM_HOSTS", R"(["algo-2"])"}}), "none 0/1 local 0/1 node 0/1"},
      {with(kToolkit, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "environment 0/1 local 0/1 node 0/1"},
  });
  EXPECT_EQ(read_cluster_environment(kToolkit).note, "");
  EXPECT_NE(read_cluster_environment(with(kToolkit, {{"SM_NUM_GPUS", "8"}})).note.find("SM_NUM_GPUS is 8"),
            std::string::npos);
}

TEST(SageMaker, ItsFileIsReadWithoutTheToolkit) {
  const CaseFolder folder;
  const auto variables = bare(folder, R"({"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "other": {}})");
  check_readings({{variables, "sagemaker 0/2 local 0/1 node 0/2 tcp algo-1:29500"}});
  EXPECT_EQ(read_cluster_environment(variables).job, "train");
}

TEST(SageMaker, HostsThatCannotBeReadAreMU494) {
  const CaseFolder folder;
  const auto file = folder.path() + "/input/config/resourceconfig.json";
  for (const auto* config : {"", "{", "[]", R"({"hosts": ["algo-1"]})", R"({"current_host": "algo-1"})"})
    check_refusals({{bare(folder, config), "MU494", {file, "'hosts' and 'current_host'", "--node-rank"}}});
  check_refusals({{bare(folder, R"({"current_host": "algo-3", "hosts": ["algo-1"]})"), "MU494", {file, "'algo-3'"}}});
  check_refusals(
      {{bare(folder, R"({"current_host": "algo-1", "hosts": [1]})"), "MU494", {file, "not a list of names"}}});
  check_refusals({{with(kToolkit, {{"SM_HOSTS", "algo-1"}}), "MU494", {"SM_HOSTS", "not a list of names"}},
                  {with(kToolkit, {{"SM_HOSTS", "[]"}}), "MU494", {"SM_HOSTS", "'algo-2'"}}});
}

TEST(SageMaker, ItsLibrariesAreRefusedByName) {
  const std::vector<std::string> data{"smddp", "DATA_PARALLEL", "--strategy ddp"};
  const std::vector<std::string> model{"model parallel library", "MODEL_PARALLEL", "--strategy fsdp"};
  check_refusals({
      {{{"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "DATA_PARALLEL"}}, "MU492", data},
      {{{"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "MODEL_PARALLEL"}}, "MU492", model},
      {{{"SM_FRAMEWORK_PARAMS", R"({"sagemaker_distributed_dataparallel_enabled": true})"}}, "MU492", data},
      {{{"SM_HPS", R"({"mp_parameters": {"partitions": 2}})"}}, "MU492", model},
      {{{"SM_HP_MP_PARAMETERS", "{}"}}, "MU492", model},
  });
  const CaseFolder folder;
  const auto variables = bare(folder, R"({"current_host": "algo-1", "hosts": ["algo-1"]})");
  const auto file = folder.write("input/config/hyperparameters.json", R"({"mp_parameters": "{\"partitions\": 2}"})");
  check_refusals({{variables, "MU492", {file, "MODEL_PARALLEL"}}});
  folder.write("input/config/hyperparameters.json", R"({"sagemaker_distributed_dataparallel_enabled": "false"})");
  check_readings({{variables, "none 0/1 local 0/1 node 0/1"},
                  {{{"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "NO"}}, "none 0/1 local 0/1 node 0/1"},
                  {{{"SM_FRAMEWORK_PARAMS", "no JSON"}}, "none 0/1 local 0/1 node 0/1"}});
}

}  // namespace
}  // namespace muster::cluster::testing
