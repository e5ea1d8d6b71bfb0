#include "track/file_trackers.h"

#include <cctype>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "base/crc.h"
#include "base/text.h"
#include "muster/base/format.h"
#include "record.h"

namespace muster::track {
namespace {

std::string field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

std::string cell(const LoggedValue& value) {
  return plain_text(
      value, [](double number) { return number_text(number); }, field, "True", "False");  // as pandas reads them
}

std::string csv_line(const std::vector<std::string>& fields) { return joined_by(",", fields, field) + '\n'; }

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
  if (file_->size() == 0) return;
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
  file_->add(joined_by(",", cells) + '\n');
}

void CsvTracker::add_columns(const LoggedStep& step) {
  const auto is_known = [&](const LoggedValue& value) { return !is_plain(value) || places_.contains(value.name); };
  if (std::all_of(step.values.begin(), step.values.end(), is_known)) return;
  auto columns = columns_;
  if (columns.empty()) columns.emplace_back("step");
  for (const auto& value : step.values)
    if (is_plain(value) && std::find(columns.begin(), columns.end(), value.name) == columns.end())
      columns.emplace_back(value.name);
  if (columns_.empty()) file_->add(csv_line(columns));
  else rewrite(columns);
  for (std::size_t i = columns_.size(); i < columns.size(); ++i) places_.emplace(columns[i], i);
  columns_ = std::move(columns);
}

void CsvTracker::rewrite(const std::vector<std::string>& columns) {
  file_->flush();
  const auto old = file_text(path_);
  const std::string padding(columns.size() - columns_.size(), ',');
  std::string text = csv_line(columns);
  std::size_t begin = 0;
  each_record_end(old, [&](std::size_t end) {
    if (begin > 0) text.append(old, begin, end - begin).append(padding).push_back('\n');
    begin = end + 1;
  });
  replace_file(path_, text);
  file_.emplace(path_);
}

namespace {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (std::isfinite(value)) return number_text(value);
  return std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

std::string json_list(const std::vector<double>& values) { return "[" + joined_by(",", values, json_number) + "]"; }

std::string json_histogram(const Histogram& of) {
  return "{\"count\":" + std::to_string(of.count) + ",\"min\":" + json_number(of.min) +
         ",\"max\":" + json_number(of.max) + ",\"sum\":" + json_number(of.sum) +
         ",\"sum_squares\":" + json_number(of.sum_squares) + ",\"limits\":" + json_list(of.limits) +
         ",\"counts\":" + json_list(of.counts) + "}";
}

/// Appends "name":value, with a comma before it unless it is the first; nothing for an image.
void append(std::string& line, const LoggedValue& value) {
  const auto* histogram = std::get_if<const Histogram*>(&value.data);
  const auto text = histogram ? json_histogram(**histogram) : plain_text(value, json_number, json_text);
  if (text.empty()) return;
  if (line.back() != '{') line += ',';
  line += json_text(value.name) + ':' + text;
}

}  // namespace

void JsonLinesTracker::log_hyperparams(std::span<const LoggedValue> values) {
  std::string line = "{\"hyperparameters\":{";
  for (const auto& value : values) append(line, value);
  file_.add(line + "}}\n");
}

void JsonLinesTracker::log(const LoggedStep& step) {
  const auto has = [&](std::string_view name) {
    return std::any_of(step.values.begin(), step.values.end(), [&](const auto& value) { return value.name == name; });
  };
  std::string line = "{";
  if (!has("step")) append(line, {"step", step.step});
  if (!has("time")) append(line, {"time", step.time});
  for (const auto& value : step.values) append(line, value);
  file_.add(line + "}\n");
}

void JsonLinesTracker::finish(RunStatus status) {
  file_.add(status == RunStatus::success ? "{\"status\":\"success\"}\n" : "{\"status\":\"failed\"}\n");
  file_.flush();
}

namespace {

// Sources of the field numbers of TensorBoard:
// tensorboard/compat/proto/{event,summary,tensor,tensor_shape,types}.proto,
// tensorboard/plugins/hparams/{api,plugin_data}.proto, google/protobuf/struct.proto.
constexpr uint64_t kStringType = 7;  // DT_STRING

// The last number distinguishes two files of one process in the same second.
std::string file_name(double time) {
  static std::atomic<int> count{0};
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return formatted("events.out.tfevents.{}.{}.{}.{}", static_cast<int64_t>(time), host.data(), ::getpid(), count++);
}

Message plugin(std::string_view name, std::string_view content = {}) {
  Message data;
  data.bytes(1, name);
  if (!content.empty()) data.bytes(2, content);
  return Message().message(1, data);
}

Message text_value(std::string_view name, std::string_view text) {
  const auto shape = Message().message(2, Message().integer(1, 1));
  const auto tensor = Message().integer(1, kStringType).message(2, shape).bytes(8, text);
  return Message().bytes(1, std::string(name) + "/text_summary").message(8, tensor).message(9, plugin("text"));
}

Message histogram_value(std::string_view name, const Histogram& of) {
  const auto proto = Message()
                         .number(1, of.min)
                         .number(2, of.max)
                         .number(3, static_cast<double>(of.count))
                         .number(4, of.sum)
                         .number(5, of.sum_squares)
                         .numbers(6, of.limits)
                         .numbers(7, of.counts);
  return Message().bytes(1, name).message(5, proto);
}

Message image_value(std::string_view name, const PngImage& image) {
  const auto size = png_size(image);
  const std::string_view bytes(reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size());
  const auto proto = Message()
                         .integer(1, static_cast<uint64_t>(size.height))
                         .integer(2, static_cast<uint64_t>(size.width))
                         .integer(3, 3)  // RGB colour space; readers use the image's
                         .bytes(4, bytes);
  return Message().bytes(1, name).message(4, proto);
}

Message summary_value(const LoggedValue& value) {
  const auto scalar = [&](auto number) { return Message().bytes(1, value.name).number(2, static_cast<float>(number)); };
  return std::visit(Overloaded{[&](double number) { return scalar(number); },
                               [&](int64_t number) { return scalar(number); }, [&](bool flag) { return scalar(flag); },
                               [&](std::string_view text) { return text_value(value.name, text); },
                               [&](const Histogram* histogram) { return histogram_value(value.name, *histogram); },
                               [&](const PngImage& image) { return image_value(value.name, image); }},
                    value.data);
}

Message hyperparam(const LoggedValue& value) {
  return std::visit(Overloaded{[](double number) { return Message().number(2, number); },
                               [](int64_t number) { return Message().number(2, static_cast<double>(number)); },
                               [](bool flag) { return Message().integer(4, flag); },
                               [](std::string_view text) { return Message().bytes(3, text); },
                               [](const auto&) { return Message().integer(1, 0); }},
                    value.data);
}

Message hyperparams_summary(std::string_view tag, int field, const Message& info) {
  const auto data = Message().integer(1, 0).message(field, info);
  return Message().message(1, Message().bytes(1, tag).message(9, plugin("hparams", data.text())));
}

}  // namespace

TensorBoardTracker::TensorBoardTracker(const std::filesystem::path& folder)
    : start_(seconds_since_1970()), file_(folder / file_name(start_)) {
  add_event(Message().number(1, start_).bytes(3, "brain.Event:2"));
  file_.flush();
}

// If no experiment is described, the HPARAMS tab takes the metrics from the scalars.
void TensorBoardTracker::log_hyperparams(std::span<const LoggedValue> values) {
  for (const auto& value : values) hyperparams_[std::string(value.name)] = hyperparam(value).text();
  Message info;
  for (const auto& [name, value] : hyperparams_) info.message(1, Message().bytes(1, name).bytes(2, value));
  info.number(5, start_);
  add_summary(hyperparams_summary("_hparams_/session_start_info", 3, info), 0, seconds_since_1970());
}

void TensorBoardTracker::log(const LoggedStep& step) {
  Message summary;
  for (const auto& value : step.values) summary.message(1, summary_value(value));
  add_summary(summary, step.step, step.time);
}

void TensorBoardTracker::finish(RunStatus status) {
  if (!hyperparams_.empty()) {
    const auto info = Message().integer(1, status == RunStatus::success ? 1 : 2).number(2, seconds_since_1970());
    add_summary(hyperparams_summary("_hparams_/session_end_info", 4, info), 0, seconds_since_1970());
  }
  file_.flush();
}

void TensorBoardTracker::add_summary(const Message& summary, int64_t step, double time) {
  add_event(Message().number(1, time).integer(2, static_cast<uint64_t>(step)).message(5, summary));
}

// Source: tensorflow/core/lib/io/record_writer.h.
void TensorBoardTracker::add_event(const Message& event) {
  std::string record;
  append_fixed(record, event.text().size(), 8);
  append_fixed(record, masked_crc32c(record), 4);
  record += event.text();
  append_fixed(record, masked_crc32c(event.text()), 4);
  file_.add(record);
}

namespace {

// A quoted JSON string is also a YAML string.
std::string yaml_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// YAML 1.1 takes 1e-05 for text, and 1 for an integer.
std::string yaml_number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  auto text = number_text(value);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

// Unquoted y, no, on, null, ~ and similar words are not text.
std::string yaml_name(std::string_view name) {
  static const std::set<std::string_view> words{"false", "null", "true"};
  const auto plain = [](unsigned char c) { return std::islower(c) || c == '_'; };
  const bool bare = name.size() > 3 && std::all_of(name.begin(), name.end(), plain) && !words.contains(name);
  return bare ? std::string(name) : yaml_text(name);
}

std::string yaml_value(const LoggedValue& value) {
  const auto text = plain_text(value, yaml_number, yaml_text);
  return text.empty() ? "null" : text;
}

}  // namespace

void HyperparamsFile::log_hyperparams(std::span<const LoggedValue> values) {
  for (const auto& value : values) lines_[std::string(value.name)] = yaml_value(value);
  std::string text;
  for (const auto& [name, value] : lines_) text += yaml_name(name) + ": " + value + '\n';
  replace_file(path_, text);
}

}  // namespace muster::track
