#pragma once

#include <bit>

#include "append_file.h"
#include "muster/track/trackers.h"

namespace muster::track {

/// Appends the lowest `size` bytes of a number, the lowest first.
inline void append_fixed(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> 8 * i);
}

/// Writes a Protocol Buffers message, field by field. Source: "Encoding", protobuf.dev.
class Message {
 public:
  Message& integer(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Message& number(int field, double value) {
    varint(static_cast<uint64_t>(field) << 3 | 1);
    append_fixed(bytes_, std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& number(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5);
    append_fixed(bytes_, std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& numbers(int field, const std::vector<double>& values) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(values.size() * 8);
    for (const double value : values) append_fixed(bytes_, std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  const std::string& text() const noexcept { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

/// Writes metrics.csv: a row per call, with "step" first, then the names in the order of their first calls. A new name
/// rewrites the file with one more column. Numbers and text are written; other kinds of values are left out.
class CsvTracker final : public Tracker {
 public:
  explicit CsvTracker(const std::filesystem::path& folder);

  std::string name() const override { return "csv"; }
  void log(const LoggedStep& step) override;
  void flush() override { file_->flush(); }

 private:
  void add_columns(const LoggedStep& step);
  void rewrite(const std::vector<std::string>& columns);

  std::filesystem::path path_;
  std::optional<AppendFile> file_;
  std::vector<std::string> columns_;
  std::map<std::string, std::size_t, std::less<>> places_;  // indices of the columns by name
};

/// Splits the first record of CSV text (RFC 4180) into its fields; `end` becomes the number of bytes read, 0 if the
/// record is incomplete.
std::vector<std::string> first_csv_record(std::string_view text, std::size_t& end);

/// Writes metrics.jsonl: one JSON object per call, with "step", "time" (seconds since 1970) and the values by name; one
/// with "hyperparameters", and at the end one with "status". Numbers that JSON lacks are "NaN", "Infinity" and
/// "-Infinity", as in the JSON of Protocol Buffers. Images are left out.
class JsonLinesTracker final : public Tracker {
 public:
  explicit JsonLinesTracker(const std::filesystem::path& folder) : file_(folder / "metrics.jsonl", whole_lines) {}

  std::string name() const override { return "jsonl"; }
  void log_hyperparams(std::span<const LoggedValue> values) override;
  void log(const LoggedStep& step) override;
  void flush() override { file_.flush(); }
  void finish(RunStatus status) override;

 private:
  AppendFile file_;
};

/// Writes events.out.tfevents.* for TensorBoard: scalars, text, histograms, images, and hyper-parameters for its
/// HPARAMS tab. Text has the tag name/text_summary, as in torch.utils.tensorboard.
class TensorBoardTracker final : public Tracker {
 public:
  explicit TensorBoardTracker(const std::filesystem::path& folder);

  std::string name() const override { return "tensorboard"; }
  void log_hyperparams(std::span<const LoggedValue> values) override;
  void log(const LoggedStep& step) override;
  void flush() override { file_.flush(); }
  void finish(RunStatus status) override;

 private:
  void add_summary(const Message& summary, int64_t step, double time);
  void add_event(const Message& event);

  double start_;
  std::map<std::string, std::string, std::less<>> hyperparams_;  // each as an encoded google.protobuf.Value
  AppendFile file_;
};

/// Writes hparams.yaml: the hyper-parameters of the run by name, in YAML 1.1.
class HyperparamsFile final : public Tracker {
 public:
  explicit HyperparamsFile(const std::filesystem::path& folder) : path_(folder / "hparams.yaml") {}

  std::string name() const override { return "hparams.yaml"; }
  void log_hyperparams(std::span<const LoggedValue> values) override;
  void log(const LoggedStep&) override {}

 private:
  std::filesystem::path path_;
  std::map<std::string, std::string, std::less<>> lines_;
};

}  // namespace muster::track
