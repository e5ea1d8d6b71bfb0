#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "muster/track/tracker.h"

namespace muster::track {

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
