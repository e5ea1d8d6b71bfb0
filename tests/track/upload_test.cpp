#include "track/upload.h"

#include <numeric>

#include "fake_mlflow.h"
#include "muster/testing/thrown.h"
#include "run_files.h"
#include "track/mlflow_tracker.h"

namespace muster::track {
namespace {

using namespace std::chrono_literals;
using muster::testing::thrown;
using muster::testing::thrown_id;
using nlohmann::json;

class UploadTest : public WithCurl {
 protected:
  /// Leaves so many steps in the folder, as a program with a dead server does; one that is killed says no end.
  void leave_waiting(int64_t count, bool killed = false) {
    fake_.set_answer([](const FakeRequest&) { return FakeReply{.drop = true}; });
    ::testing::internal::CaptureStderr();
    {
      MlflowTracker tracker(folder_, {.mlflow = {.tracking_uri = server_.uri()}, .name = "digits"}, {},
                            {.at_end = 1ms, .call = 2s, .first_pause = 1ms, .longest_pause = 1ms});
      for (int64_t step = 0; step < count; ++step) log_to(tracker, {{"loss", 0.5}}, step);
      if (killed) tracker.flush();
      else tracker.finish(RunStatus::success);
    }
    ::testing::internal::GetCapturedStderr();
    fake_.set_answer({});
  }
  UploadReport upload(const std::string& uri = "") {
    return upload_run(folder_, {.timeout = 0ms, .tracking_uri = uri}, {});
  }
  void expect_all(int64_t count) {
    std::vector<int64_t> steps(static_cast<std::size_t>(count));
    std::iota(steps.begin(), steps.end(), 0);
    EXPECT_EQ(fake_.steps(), steps);
    EXPECT_FALSE(std::filesystem::exists(waiting_lines_path(folder_)));
  }

  ScratchFolder folder_;
  FakeMlflow fake_;
  FakeServer server_ = fake_.start();
};

TEST_F(UploadTest, SendsWhatWaitsOnce) {
  leave_waiting(2500);
  const auto report = upload();
  EXPECT_EQ(report.lines, 2501);
  EXPECT_EQ(report.refused, 0);
  EXPECT_EQ(report.run_id, "r0");
  EXPECT_EQ(report.tracking_uri, server_.uri());
  expect_all(2500);
  EXPECT_EQ(fake_.statuses, std::vector<std::string>{"FINISHED"});
  EXPECT_EQ(upload().lines, 0);
  expect_all(2500);
}

TEST_F(UploadTest, GoesOnWhereAnEarlierOneEnded) {
  leave_waiting(2500);
  int batches = 0;
  fake_.set_answer([&](const FakeRequest& request) -> std::optional<FakeReply> {
    if (!request.path.ends_with("log-batch") || ++batches < 2) return std::nullopt;
    fake_.answer(request);  // its reply is lost, and then the server is gone
    return FakeReply{.drop = true};
  });
  const auto words = thrown([&] { upload(); });
  EXPECT_TRUE(words.starts_with("MU538: ")) << words;
  EXPECT_EQ(fake_.steps().size(), 2000u);
  fake_.set_answer({});
  EXPECT_EQ(upload().lines, 1501);
  expect_all(2500);
  EXPECT_EQ(fake_.runs.size(), 1u);
}

TEST_F(UploadTest, ARunWithoutEndWasKilled) {
  leave_waiting(3, true);
  EXPECT_EQ(upload().lines, 3);
  expect_all(3);
  EXPECT_EQ(fake_.statuses, std::vector<std::string>{"KILLED"});
}

TEST_F(UploadTest, AServerMayHaveMoved) {
  leave_waiting(3);
  auto there = fake_.start();
  EXPECT_EQ(upload(there.uri() + "/").tracking_uri, there.uri());
  expect_all(3);
}

TEST_F(UploadTest, TakesThePasswordOfTheVariables) {
  leave_waiting(3);
  const auto host = server_.uri().substr(7);
  upload_run(folder_, {.timeout = 0ms}, {{"MLFLOW_TRACKING_URI", "http://anna:secret@" + host}});
  EXPECT_NE(fake_.requests().back().headers.find("Authorization: Basic YW5uYTpzZWNyZXQ="), std::string::npos);
  leave_waiting(1);
  upload_run(folder_, {.timeout = 0ms}, {{"MLFLOW_TRACKING_URI", "http://anna:secret@elsewhere:1"}});
  EXPECT_EQ(fake_.requests().back().headers.find("Authorization"), std::string::npos);
}

TEST_F(UploadTest, LinesThatAreDamagedAreLeftOut) {
  leave_waiting(3);
  const auto path = waiting_lines_path(folder_);
  write_text(path, "{\"metrics\":[{\"key\"\n" + read_text(path));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(upload().lines, 5);
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("MU535: 1 line of"), std::string::npos) << lines;
  expect_all(3);
}

TEST_F(UploadTest, AFolderWithoutARunIsRefused) {
  EXPECT_EQ(thrown_id([&] { upload(); }), "MU537");
  EXPECT_EQ(thrown_id([] { upload_run("/dev/null/none", {}, {}); }), "MU537");
}

TEST_F(UploadTest, AProgramThatRunsSendsByItself) {
  leave_waiting(3);
  const AppendFile file(waiting_lines_path(folder_));
  const auto words = thrown([&] { upload(); });
  EXPECT_TRUE(words.starts_with("MU537: ")) << words;
  EXPECT_NE(words.find("another run writes it"), std::string::npos) << words;
}

}  // namespace
}  // namespace muster::track
