#include <limits>

#include <gtest/gtest.h>

#include "run_files.h"
#include "track/file_trackers.h"

namespace muster::track {
namespace {

std::string rows(const ScratchFolder& folder) { return read_text(folder / "metrics.csv"); }

TEST(CsvTracker, WritesARowPerCall) {
  ScratchFolder folder;
  CsvTracker csv(folder);
  log_to(csv, {{"loss", 0.5}, {"lr", 1e-5}, {"seen", 3}}, 0);
  log_to(csv, {{"lr", 0.1}, {"loss", 0.25f}}, 1);
  csv.flush();
  EXPECT_EQ(rows(folder), "step,loss,lr,seen\n0,0.5,1e-05,3\n1,0.25,0.1,\n");
}

TEST(CsvTracker, ANewNameWidensTheRowsBefore) {
  ScratchFolder folder;
  CsvTracker csv(folder);
  log_to(csv, {{"loss", 1.0}, {"note", "two\nlines, \"quoted\""}}, 0);
  log_to(csv, {{"val", 2.0}, {"acc", 3.0}}, 1);
  csv.flush();
  log_to(csv, {{"last", true}}, 2);
  csv.flush();
  EXPECT_EQ(rows(folder), "step,loss,note,val,acc,last\n0,1,\"two\nlines, \"\"quoted\"\"\",,,\n1,,,2,3,\n2,,,,,True\n");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"metrics.csv"});
}

TEST(CsvTracker, ContinuesAFileAndCutsOffHalfARow) {
  ScratchFolder folder;
  {
    CsvTracker csv(folder);
    log_to(csv, {{"loss", 1.0}, {"a,b", "x\ny"}}, 0);
    csv.flush();
  }
  write_text(folder / "metrics.csv", rows(folder) + "1,2,\"cut\noff");
  CsvTracker csv(folder);
  log_to(csv, {{"a,b", "z"}, {"new", 4}}, 2);
  csv.flush();
  EXPECT_EQ(rows(folder), "step,loss,\"a,b\",new\n0,1,\"x\ny\",\n2,,z,4\n");
}

TEST(CsvTracker, LeavesOutWhatIsNoNumberOrText) {
  ScratchFolder folder;
  CsvTracker csv(folder);
  const auto png = png_bytes(2, 3);
  log_to(csv, {{"image", PngImage{png}}}, 0);
  log_to(csv, {{"image", PngImage{png}}, {"loss", std::numeric_limits<double>::quiet_NaN()}}, 1);
  log_to(csv, {{"loss", -std::numeric_limits<double>::infinity()}}, 2);
  csv.flush();
  EXPECT_EQ(rows(folder), "step,loss\n1,nan\n2,-inf\n");
}

TEST(CsvTracker, AValueNamedStepIsTheStep) {
  ScratchFolder folder;
  CsvTracker csv(folder);
  log_to(csv, {{"step", 70}, {"loss", 1}}, 0);
  csv.flush();
  EXPECT_EQ(rows(folder), "step,loss\n70,1\n");
}

TEST(FirstCsvRecord, ReadsQuotesAndBothLineEnds) {
  std::size_t end = 0;
  EXPECT_EQ(first_csv_record("a,\"b,\"\"c\"\"\n\",\r\nrest", end), (std::vector<std::string>{"a", "b,\"c\"\n", ""}));
  EXPECT_EQ(end, 15u);
  EXPECT_TRUE(first_csv_record("a,\"b\n", end).empty());
  EXPECT_EQ(end, 0u);
}

}  // namespace
}  // namespace muster::track
