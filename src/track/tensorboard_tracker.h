#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "append_file.h"
#include "message.h"
#include "muster/track/tracker.h"

namespace muster::track {

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

}  // namespace muster::track
