#include <sys/stat.h>

#include "cluster/cases.h"
#include "cluster/reading.h"

namespace muster::cluster::testing {
namespace {

/// PATH begins with a folder with this script as scontrol, while it lives.
class FakeScontrol {
 public:
  explicit FakeScontrol(const std::string& script) : before_(std::getenv("PATH")) {
    const auto path = folder_.write("scontrol", "#!/bin/sh\n" + script);
    chmod(path.c_str(), 0700);
    setenv("PATH", (folder_.path() + ":" + before_).c_str(), 1);
  }
  ~FakeScontrol() { setenv("PATH", before_.c_str(), 1); }
  std::string folder() const { return folder_.path(); }

 private:
  CaseFolder folder_;
  std::string before_;
};

TEST(Requeue, AJobIsCalledAsScontrolWantsIt) {
  EXPECT_EQ(slurm_job({{"SLURM_JOB_ID", "12"}}), "12");
  EXPECT_EQ(slurm_job({{"SLURM_JOB_ID", "14"}, {"SLURM_ARRAY_JOB_ID", "12"}, {"SLURM_ARRAY_TASK_ID", "2"}}), "12_2");
  EXPECT_EQ(slurm_job({}), "");
}

TEST(Requeue, ScontrolGetsTheJob) {
  const FakeScontrol fake("echo \"$@\" > \"$(dirname \"$0\")/called\"");
  EXPECT_EQ(requeue_slurm_job("12_2"), "");
  std::string line;
  std::ifstream called(fake.folder() + "/called");
  std::getline(called, line);
  EXPECT_EQ(line, "requeue 12_2");
}

TEST(Requeue, WhatScontrolSaysIsPassedOn) {
  const FakeScontrol fake("echo 'Job is not batch' >&2\nexit 1");
  EXPECT_EQ(requeue_slurm_job("12"), "scontrol requeue failed: Job is not batch");
}

TEST(Requeue, AScontrolThatSlurmEndsWithTheJobHasQueuedIt) {
  const FakeScontrol fake("kill -TERM $$");
  EXPECT_EQ(requeue_slurm_job("12"), "");
}

TEST(Requeue, WithoutScontrolTheReasonIsSaid) {
  const CaseFolder empty;
  const std::string before = std::getenv("PATH");
  setenv("PATH", empty.path().c_str(), 1);
  EXPECT_EQ(requeue_slurm_job("12"), "scontrol cannot be started: No such file or directory");
  setenv("PATH", before.c_str(), 1);
}

}  // namespace
}  // namespace muster::cluster::testing
