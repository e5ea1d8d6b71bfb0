#include "csv_tracker.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "number_text.h"

namespace muster::track {
namespace {

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

std::string cell(const LoggedValue& value) {
  return std::visit(
      Overloaded{[](double number) { return number_text(number); }, [](int64_t number) { return number_text(number); },
                 [](bool flag) { return std::string(flag ? "True" : "False"); },  // spelling that pandas reads
                 [](std::string_view text) { return field(text); }, [](const auto&) { return std::string(); }},
      value.data);
}

std::string line_of(const std::vector<std::string>& fields) {
  std::string line;
  for (const auto& one : fields) line += (line.empty() ? "" : ",") + field(one);
  return line + '\n';
}

/// Calls f at the ends of records: line ends outside quotes.
template <class F>
void each_record_end(std::string_view text, F&& at) {
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == '\n' && !quoted) at(i);
  }
}

uint64_t whole_rows(const std::filesystem::path& path) {
  uint64_t end = 0;
  each_record_end(file_text(path), [&](std::size_t at) { end = at + 1; });
  return end;
}

}  // namespace

std::vector<std::string> first_csv_record(std::string_view text, std::size_t& end) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (end = 0; end < text.size(); ++end) {
    const char c = text[end];
    if (c == '"') {
      if (quoted && text.substr(end + 1, 1) == "\"") fields.back() += text[end++];
      else quoted = !quoted;
    } else if (c == '\n' && !quoted) {
      ++end;
      return fields;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r' || quoted) {
      fields.back() += c;
    }
  }
  end = 0;
  return {};
}

CsvTracker::CsvTracker(const std::filesystem::path& folder) : path_(folder / "metrics.csv") {
  file_.emplace(path_, whole_rows);
  if (file_->size() > 0) read_header();
}

void CsvTracker::read_header() {
  std::size_t end = 0;
  columns_ = first_csv_record(file_text(path_), end);
  for (std::size_t i = 0; i < columns_.size(); ++i) places_.emplace(columns_[i], i);
}

void CsvTracker::log(const LoggedStep& step) {
  if (std::none_of(step.values.begin(), step.values.end(), is_plain)) return;
  add_columns(step);
  std::vector<std::string> cells(columns_.size());
  if (const auto place = places_.find("step"); place != places_.end()) cells[place->second] = number_text(step.step);
  for (const auto& value : step.values)
    if (is_plain(value)) cells[places_.find(value.name)->second] = cell(value);
  row_.clear();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) row_ += ',';
    row_ += cells[i];
  }
  row_ += '\n';
  file_->add(row_);
}

void CsvTracker::add_columns(const LoggedStep& step) {
  const auto is_known = [&](const LoggedValue& value) { return !is_plain(value) || places_.contains(value.name); };
  if (std::all_of(step.values.begin(), step.values.end(), is_known)) return;
  auto columns = columns_;
  if (columns.empty()) columns.emplace_back("step");
  for (const auto& value : step.values)
    if (is_plain(value) && std::find(columns.begin(), columns.end(), value.name) == columns.end())
      columns.emplace_back(value.name);
  if (columns_.empty()) file_->add(line_of(columns));
  else rewrite(columns);
  for (std::size_t i = columns_.size(); i < columns.size(); ++i) places_.emplace(columns[i], i);
  columns_ = std::move(columns);
}

void CsvTracker::rewrite(const std::vector<std::string>& columns) {
  file_->flush();
  const auto old = file_text(path_);
  const std::string padding(columns.size() - columns_.size(), ',');
  std::string text = line_of(columns);
  std::size_t begin = 0;
  each_record_end(old, [&](std::size_t end) {
    if (begin > 0) text.append(old, begin, end - begin).append(padding).push_back('\n');
    begin = end + 1;
  });
  replace_file(path_, text);
  file_.emplace(path_);
}

}  // namespace muster::track
