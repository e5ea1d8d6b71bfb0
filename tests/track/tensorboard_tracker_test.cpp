#include <gtest/gtest.h>

#include "event_file.h"
#include "run_files.h"
#include "track/file_trackers.h"

namespace muster::track {
namespace {

std::vector<ParsedMessage> events(const ScratchFolder& folder) {
  const auto names = names_in(folder);
  EXPECT_EQ(names.size(), 1u);
  EXPECT_TRUE(names.at(0).starts_with("events.out.tfevents.")) << names[0];
  return read_events(read_text(folder / names[0]));
}

/// The only value of an event's summary.
ParsedMessage value_of(const ParsedMessage& event) { return event.message(5).message(1); }

TEST(TensorBoardTracker, BeginsWithTheVersionOfTheFile) {
  ScratchFolder folder;
  TensorBoardTracker board(folder);
  const auto found = events(folder);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text(3), "brain.Event:2");
  EXPECT_GT(found[0].number(1), 1.7e9);
}

TEST(TensorBoardTracker, WritesScalarsOfACallAsOneEvent) {
  ScratchFolder folder;
  TensorBoardTracker board(folder);
  log_to(board, {{"loss", 0.5}, {"a rather long name/with parts", -3}, {"right", true}}, int64_t{1} << 40);
  board.flush();
  const auto event = events(folder).at(1);
  EXPECT_EQ(event.number(1), 1.5);
  EXPECT_EQ(event.integer(2), int64_t{1} << 40);
  const auto summary = event.message(5);
  ASSERT_EQ(summary.count(1), 3u);
  EXPECT_EQ(summary.message(1, 0).text(1), "loss");
  EXPECT_EQ(summary.message(1, 0).single(2), 0.5f);
  EXPECT_EQ(summary.message(1, 1).text(1), "a rather long name/with parts");
  EXPECT_EQ(summary.message(1, 1).single(2), -3.0f);
  EXPECT_EQ(summary.message(1, 2).single(2), 1.0f);
}

TEST(TensorBoardTracker, WritesTexts) {
  ScratchFolder folder;
  TensorBoardTracker board(folder);
  log_to(board, {{"note", "some *text*"}}, 3);
  board.flush();
  const auto value = value_of(events(folder).at(1));
  EXPECT_EQ(value.text(1), "note/text_summary");
  EXPECT_EQ(value.message(8).integer(1), 7);  // DT_STRING
  EXPECT_EQ(value.message(8).message(2).message(2).integer(1), 1);
  EXPECT_EQ(value.message(8).text(8), "some *text*");
  EXPECT_EQ(value.message(9).message(1).text(1), "text");
}

TEST(TensorBoardTracker, WritesImagesAndHistograms) {
  ScratchFolder folder;
  TensorBoardTracker board(folder);
  const auto png = png_bytes(200, 3);
  const std::vector<float> numbers{1, 2, 4};
  const auto histogram = make_histogram(numbers, 3);
  log_to(board, {{"image", PngImage{png}}, {"weights", histogram}}, 3);
  board.flush();
  const auto summary = events(folder).at(1).message(5);
  const auto image = summary.message(1, 0).message(4);
  EXPECT_EQ(image.integer(1), 3);
  EXPECT_EQ(image.integer(2), 200);
  EXPECT_EQ(image.text(4), std::string(png.begin(), png.end()));
  const auto counts = summary.message(1, 1).message(5);
  EXPECT_EQ(counts.number(1), 1);
  EXPECT_EQ(counts.number(2), 4);
  EXPECT_EQ(counts.number(3), 3);
  EXPECT_EQ(counts.number(4), 7);
  EXPECT_EQ(counts.number(5), 21);
  EXPECT_EQ(counts.numbers(6), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(counts.numbers(7), (std::vector<double>{1, 1, 1}));
}

TEST(TensorBoardTracker, WritesHyperparametersAndHowTheRunEnded) {
  ScratchFolder folder;
  TensorBoardTracker board(folder);
  log_hyperparams_to(board, {{"lr", 0.1}, {"net", "mlp"}});
  log_hyperparams_to(board, {{"deep", false}});
  board.finish(RunStatus::failed);
  const auto found = events(folder);
  ASSERT_EQ(found.size(), 4u);
  const auto content = [](const ParsedMessage& value) { return value.message(9).message(1).message(2); };
  const auto second = value_of(found[2]);
  EXPECT_EQ(second.text(1), "_hparams_/session_start_info");
  EXPECT_EQ(second.message(9).message(1).text(1), "hparams");
  const auto start = content(second).message(3);
  ASSERT_EQ(start.count(1), 3u);
  EXPECT_EQ(start.message(1, 0).text(1), "deep");
  EXPECT_EQ(start.message(1, 0).message(2).integer(4), 0);
  EXPECT_EQ(start.message(1, 1).message(2).number(2), 0.1);
  EXPECT_EQ(start.message(1, 2).message(2).text(3), "mlp");
  EXPECT_EQ(value_of(found[3]).text(1), "_hparams_/session_end_info");
  EXPECT_EQ(content(value_of(found[3])).message(4).integer(1), 2);  // STATUS_FAILURE
}

TEST(TensorBoardTracker, ACutFileIsReadUpToItsLastWholeRecord) {
  ScratchFolder folder;
  TensorBoardTracker board(folder);
  for (int step = 0; step < 3; ++step) log_to(board, {{"loss", 0.5}}, step);
  board.flush();
  const auto bytes = read_text(folder / names_in(folder)[0]);
  EXPECT_EQ(read_events(bytes).size(), 4u);
  EXPECT_EQ(read_events(std::string_view(bytes).substr(0, bytes.size() - 1)).size(), 3u);
  auto changed = bytes;
  changed[bytes.size() - 10] ^= 1;
  EXPECT_THROW(read_events(changed), std::runtime_error);
}

}  // namespace
}  // namespace muster::track
