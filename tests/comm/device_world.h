#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "muster/sim/backend.h"
#include "muster/sim/sim.h"

namespace muster::comm {

/// How the ranks of a world use a simulated device.
struct DeviceWorld {
  bool device_backend = false;               ///< else operations are staged
  bool side_stream = true;                   ///< the current stream is not the default one
  std::vector<at::ScalarType> without = {};  ///< dtypes that the backend refuses
};

/// What the ranks threw, one after another.
inline std::string errors_of(const std::vector<std::exception_ptr>& thrown) {
  std::string text;
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) try {
      if (thrown[rank]) std::rethrow_exception(thrown[rank]);
    } catch (const std::exception& error) {
      text += "rank " + std::to_string(rank) + ": " + error.what() + "\n";
    }
  return text;
}

/// Runs `body` as ranks that are threads, each with a simulated device that is current. Returns their errors.
inline std::string run_device_world(int size, const DeviceWorld& world,
                                    const std::function<void(Communicator, at::Device)>& body) {
  ThreadWorldOptions options;
  if (world.device_backend)
    options.device_backend = std::make_shared<const BackendEntry>(BackendEntry{
        .device = c10::DeviceType::PrivateUse1,
        .make = [without = world.without](
                    const auto& store, int rank, int ranks,
                    const GroupOptions&) { return sim::make_backend(store, rank, ranks, {.refused = without}); },
        .without = world.without});
  return errors_of(run_thread_world(size, options, [&](const Communicator& comm) {
    const auto device = sim::device(comm.rank());
    const c10::DeviceGuard on_device(device);
    c10::OptionalStreamGuard on_stream;
    if (world.side_stream)
      on_stream.reset_stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false));
    body(comm, device);
  }));
}

}  // namespace muster::comm
