#include "tensorboard_tracker.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

#include "crc32c.h"
#include "muster/base/format.h"
#include "number_text.h"

// Sources of the field numbers: tensorboard/compat/proto/{event,summary,tensor,tensor_shape,types}.proto,
// tensorboard/plugins/hparams/{api,plugin_data}.proto, google/protobuf/struct.proto.
namespace muster::track {
namespace {

constexpr uint64_t kStringType = 7;  // DT_STRING

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

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

std::string little_endian(uint64_t value, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(value >> 8 * i);
  return bytes;
}

}  // namespace

TensorBoardTracker::TensorBoardTracker(const std::filesystem::path& folder)
    : start_(now()), file_(folder / file_name(start_)) {
  add_event(Message().number(1, start_).bytes(3, "brain.Event:2"));
  file_.flush();
}

// If no experiment is described, the HPARAMS tab takes the metrics from the scalars.
void TensorBoardTracker::log_hyperparams(std::span<const LoggedValue> values) {
  for (const auto& value : values) hyperparams_[std::string(value.name)] = hyperparam(value).text();
  Message info;
  for (const auto& [name, value] : hyperparams_) info.message(1, Message().bytes(1, name).bytes(2, value));
  info.number(5, start_);
  add_summary(hyperparams_summary("_hparams_/session_start_info", 3, info), 0, now());
}

void TensorBoardTracker::log(const LoggedStep& step) {
  Message summary;
  for (const auto& value : step.values) summary.message(1, summary_value(value));
  add_summary(summary, step.step, step.time);
}

void TensorBoardTracker::finish(RunStatus status) {
  if (!hyperparams_.empty()) {
    const auto info = Message().integer(1, status == RunStatus::success ? 1 : 2).number(2, now());
    add_summary(hyperparams_summary("_hparams_/session_end_info", 4, info), 0, now());
  }
  file_.flush();
}

void TensorBoardTracker::add_summary(const Message& summary, int64_t step, double time) {
  add_event(Message().number(1, time).integer(2, static_cast<uint64_t>(step)).message(5, summary));
}

// Source: tensorflow/core/lib/io/record_writer.h.
void TensorBoardTracker::add_event(const Message& event) {
  const auto length = little_endian(event.text().size(), 8);
  file_.add(length + little_endian(masked_crc32c(length), 4) + event.text() +
            little_endian(masked_crc32c(event.text()), 4));
}

}  // namespace muster::track
