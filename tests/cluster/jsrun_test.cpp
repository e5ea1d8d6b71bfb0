#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

/// As jsrun sets them for the last of four tasks on two hosts.
Environment jsrun(const CaseFolder& folder) {
  return {{"JSM_NAMESPACE_RANK", "3"},
          {"JSM_NAMESPACE_SIZE", "4"},
          {"JSM_NAMESPACE_LOCAL_RANK", "1"},
          {"LSB_JOBID", "123456"},
          {"LSB_DJOB_RANKFILE", folder.write("hosts", "batch\nalpha\nalpha\nbeta\nbeta\n")}};
}

TEST(Jsrun, TheHostThatJsrunRunsOnIsLeftOut) {
  const CaseFolder folder;
  const auto variables = jsrun(folder);
  check_readings({
      {variables, "lsf 3/4 local 1/2 node 1/2 tcp alpha:10456"},
      {with(variables, {{"JSM_NAMESPACE_LOCAL_SIZE", "4"}}), "lsf 3/4 local 1/4 node 0/1 tcp alpha:10456"},
      {with(variables, {{"LSB_DJOB_RANKFILE", ""}, {"LSB_MCPU_HOSTS", "batch 1 gamma 2 delta 2"}}),
       "lsf 3/4 local 1/2 node 1/2 tcp gamma:10456"},
      {with(variables, {{"LSB_JOBID", ""}}), "lsf 3/4 local 1/2 node 1/2 tcp alpha:29500"},
      {with(variables, {{"MASTER_ADDR", "omega"}, {"MASTER_PORT", "7"}}), "lsf 3/4 local 1/2 node 1/2 tcp omega:7"},
      {with(variables, {{"JSM_NAMESPACE_RANK", "0"},
                        {"JSM_NAMESPACE_SIZE", "1"},
                        {"JSM_NAMESPACE_LOCAL_RANK", "0"},
                        {"JSM_NAMESPACE_LOCAL_SIZE", "1"}}),
       "lsf 0/1 local 0/1 node 0/1"},
  });
}

TEST(Jsrun, WhatIsMissingIsNamed) {
  const CaseFolder folder;
  const auto variables = jsrun(folder);
  check_refusals({
      {with(variables, {{"JSM_NAMESPACE_SIZE", ""}}), "MU020", {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"}},
      {with(variables, {{"JSM_NAMESPACE_LOCAL_RANK", ""}}), "MU020", {"JSM_NAMESPACE_LOCAL_RANK"}},
      {with(variables, {{"JSM_NAMESPACE_SIZE", "5"}}), "MU020", {"JSM_NAMESPACE_LOCAL_SIZE", "5 ranks", "2 hosts"}},
      {with(variables, {{"JSM_NAMESPACE_RANK", "4"}}), "MU022", {"JSM_NAMESPACE_RANK is 4"}},
      {with(variables, {{"LSB_DJOB_RANKFILE", ""}, {"JSM_NAMESPACE_LOCAL_SIZE", "2"}}),
       "MU024",
       {"LSB_DJOB_RANKFILE", "MASTER_ADDR"}},
  });
}

}  // namespace
}  // namespace muster::cluster::testing
