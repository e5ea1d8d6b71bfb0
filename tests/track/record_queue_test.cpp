#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "record_text.h"
#include "run_files.h"
#include "track/record.h"

namespace muster::track {
namespace {

using namespace std::chrono_literals;

TEST(RecordQueue, HandsOnInOrder) {
  ScratchFolder folder;
  RecordQueue queue(1000, folder / "spill");
  EXPECT_TRUE(queue.push(record_text(0)));
  EXPECT_TRUE(queue.push(record_text(1)));
  std::string bytes;
  EXPECT_TRUE(queue.take(bytes, 0ms));
  EXPECT_EQ(steps_in(bytes), (std::vector<int64_t>{0, 1}));
  queue.mark_written();
  EXPECT_TRUE(queue.wait_until_written(0ms));
  queue.close();
  EXPECT_FALSE(queue.push(record_text(2)));
  EXPECT_FALSE(queue.take(bytes, 0ms));
}

TEST(RecordQueue, SpillsWhatMemoryDoesNotTake) {
  ScratchFolder folder;
  const auto size = record_text(0).size();
  RecordQueue queue(3 * size, folder / "spill");
  for (int step = 0; step < 10; ++step) queue.push(record_text(step));
  EXPECT_EQ(std::filesystem::file_size(folder / "spill"), 7 * size);
  std::string bytes;
  std::vector<int64_t> steps;
  const auto take = [&] {
    queue.take(bytes, 0ms);
    for (const auto step : steps_in(bytes)) steps.push_back(step);
  };
  take();
  EXPECT_EQ(steps.size(), 3u);
  queue.push(record_text(10));  // into the file, behind the others
  take();
  EXPECT_FALSE(std::filesystem::exists(folder / "spill"));
  queue.push(record_text(11));
  take();
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(queue.dropped(), 0);
}

TEST(RecordQueue, SpillsRecordsLongerThanAPiece) {
  ScratchFolder folder;
  RecordQueue queue(100, folder / "spill");
  for (int step = 0; step < 4; ++step) queue.push(record_text(step, 3 << 20));
  queue.close();
  std::string bytes;
  std::vector<int64_t> steps;
  while (queue.take(bytes, 0ms))
    for (const auto step : steps_in(bytes)) steps.push_back(step);
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(RecordQueue, CountsWhatIsLost) {
  RecordQueue queue(1, "/dev/null/no-folder");
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 4; ++step) EXPECT_TRUE(queue.push(record_text(step)));
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(queue.dropped(), 3);
  EXPECT_NE(lines.find("MU422"), std::string::npos) << lines;
  EXPECT_EQ(lines.find("MU422"), lines.rfind("MU422")) << lines;
  std::string bytes;
  queue.take(bytes, 0ms);
  EXPECT_EQ(steps_in(bytes), std::vector<int64_t>{0});
  queue.mark_written();
  EXPECT_TRUE(queue.wait_until_written(0ms));
}

TEST(RecordQueue, TakesFromManyThreads) {
  ScratchFolder folder;
  RecordQueue queue(2000, folder / "spill");
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < 500; ++i) queue.push(record_text(thread * 500 + i));
    });
  std::vector<int64_t> steps;
  std::jthread reader([&] {
    for (std::string bytes; queue.take(bytes, 1ms); queue.mark_written())
      for (const auto step : steps_in(bytes)) steps.push_back(step);
  });
  threads.clear();
  EXPECT_TRUE(queue.wait_until_written(60s));
  queue.close();
  reader.join();
  ASSERT_EQ(steps.size(), 2000u);
  std::vector<int64_t> last(4, -1);
  for (const auto step : steps) {
    const auto thread = static_cast<std::size_t>(step / 500);
    EXPECT_LT(last[thread], step);
    last[thread] = step;
  }
}

}  // namespace
}  // namespace muster::track
