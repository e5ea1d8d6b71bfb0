#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "append_file.h"
#include "muster/track/tracker.h"

namespace muster::track {

/// Writes metrics.csv: a row per call, with "step" first, then the names in the order of their first calls. A new name
/// rewrites the file with one more column. Numbers and text are written; other kinds of values are left out.
class CsvTracker final : public Tracker {
 public:
  explicit CsvTracker(const std::filesystem::path& folder);

  std::string name() const override { return "csv"; }
  void log(const LoggedStep& step) override;
  void flush() override { file_->flush(); }

 private:
  void read_header();
  void add_columns(const LoggedStep& step);
  void rewrite(const std::vector<std::string>& columns);

  std::filesystem::path path_;
  std::optional<AppendFile> file_;
  std::vector<std::string> columns_;
  std::map<std::string, std::size_t, std::less<>> places_;  // indices of the columns by name
  std::string row_;
};

/// Splits the first record of CSV text (RFC 4180) into its fields; `end` becomes the number of bytes read, 0 if the
/// record is incomplete.
std::vector<std::string> first_csv_record(std::string_view text, std::size_t& end);

}  // namespace muster::track
