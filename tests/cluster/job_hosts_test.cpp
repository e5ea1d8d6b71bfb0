#include "cluster/cases.h"
#include "cluster/reading.h"

namespace muster::cluster::testing {
namespace {

TEST(JobHosts, PortsFollowTheNumberOfTheJob) {
  EXPECT_EQ(port_of_job(123456), 18456);
  EXPECT_EQ(port_of_job(19999, 2), 15001) << "the last four digits wrap around";
  EXPECT_EQ(port_of_job(std::nullopt, 3), 12910);
}

std::string found(const Environment& variables) {
  const auto first = first_host_of_job(variables);
  return first ? first->host + ":" + std::to_string(first->port) : "";
}

TEST(JobHosts, EachJobSystemNamesTheFirst) {
  const CaseFolder folder;
  const auto hosts = folder.write("hosts", "alpha.site\nalpha.site\nbeta.site\n");
  EXPECT_EQ(found({{"PBS_NODEFILE", hosts}, {"PBS_JOBID", "1234[5].server"}}), "alpha.site:16234");
  EXPECT_EQ(found({{"PBS_NODEFILE", hosts}}), "alpha.site:12910");
  EXPECT_EQ(found({{"LSB_DJOB_RANKFILE", hosts}, {"LSB_JOBID", "20007"}}), "alpha.site:15007");
  EXPECT_EQ(found({{"LSB_MCPU_HOSTS", "gamma 4 delta 4"}, {"LSB_JOBID", "8"}}), "gamma:15008");
  EXPECT_EQ(found({{"SLURM_NODELIST", "n[07-08]"}, {"SLURM_JOB_ID", "9"}}), "n07:15009");
  EXPECT_EQ(found({}), "");
  EXPECT_EQ(found({{"PBS_NODEFILE", folder.path() + "/none"}, {"PBS_JOBID", "1"}}), "") << "no such file";
  EXPECT_THROW(found({{"SLURM_JOB_NODELIST", "n["}}), ConfigError);
}

TEST(JobHosts, AFileOfHostsIsReadByWords) {
  const CaseFolder folder;
  EXPECT_EQ(read_host_file(folder.write("hosts", "a b\n\n  c\n")), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(read_host_file(folder.path() + "/none").empty());
}

}  // namespace
}  // namespace muster::cluster::testing
