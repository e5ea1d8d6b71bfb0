#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/runtime/detail/process_control.h"
#include "muster/track/trackers.h"

namespace muster::runtime {

/// Creates the trackers on the main rank, and trackers that do nothing on the others.
template <class Program, class Config>
Trackers trackers_on_main(const Program& program, std::string name, const Config& config, TrackersOptions options) {
  const bool is_main = program.group().rank() == 0;
  options.name = std::move(name);
  return first_here(program.group(), is_main, [&] {
    if (!is_main) return Trackers();
    Trackers trackers(options);
    if (std::begin(config) != std::end(config)) trackers.log_hyperparams(config);
    return trackers;
  });
}

}  // namespace muster::runtime

namespace muster {

/// Creates the trackers of a program under Accelerator or Fabric. Those of the main rank write; those of other ranks do
/// nothing, and do not even read tensors. `name`: the experiment's name; `config`: its hyper-parameters.
/// init_trackers(accelerator, "digits", {{"lr", 0.1}}, {.log_with = {"tensorboard"}}).
/// Collective. Throws, on all ranks: as the constructor of Trackers; and as its log_hyperparams().
template <class Program>
Trackers init_trackers(const Program& program, std::string name, std::initializer_list<LoggedValue> config = {},
                       const TrackersOptions& options = {}) {
  return runtime::trackers_on_main(program, std::move(name), config, options);
}
template <class Program, NamedValues Config>
Trackers init_trackers(const Program& program, std::string name, const Config& config,
                       const TrackersOptions& options = {}) {
  return runtime::trackers_on_main(program, std::move(name), config, options);
}

/// Encodes an image as the bytes of a PNG file. `image`: [H, W], or [C, H, W] with 1, 3 or 4 channels; floating-point
/// values from 0 to 1 (others are clamped), or uint8 values from 0 to 255.
/// Throws: UsageError (MU455) for another tensor.
std::vector<uint8_t> encode_png(const at::Tensor& image);

/// Logs images by name: log_images(trackers, {{"samples", generated}}, step). A batch [N, C, H, W] is logged as
/// "samples/0", "samples/1" and so on. Tensors are read only on ranks that track; reading waits for their device.
/// Throws: as encode_png() and Trackers::log().
void log_images(const Trackers& trackers, std::initializer_list<std::pair<std::string_view, at::Tensor>> images,
                std::optional<int64_t> step = {});

}  // namespace muster
