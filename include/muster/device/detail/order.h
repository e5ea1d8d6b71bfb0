#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

/// The order of work that runs later than the host asks for it. Every wait for an event, guard and asynchronous copy of
/// the library is one of these calls, with the name of its site. Nothing runs later on the CPU: there, a stream and an
/// event are nothing, and calls return at once.
namespace muster::device {

/// A place of the library that asks for an order; its name says between what.
struct Site {
  const char* name;
};

/// What a site asks for.
enum class Ordering : uint8_t {
  stream_wait,    ///< a stream waits for an event
  host_wait,      ///< the calling thread waits for an event
  query,          ///< the calling thread asks whether an event has come; left out, it has
  stream_scope,   ///< the current stream is another one for a while
  device_scope,   ///< the current device is another one for a while
  async_copy,     ///< a copy that is not waited for; left out, it is
  record_stream,  ///< memory is not reused before the current stream has used it
};

/// Asked at every site, on a device only. False: the site is left out.
using OrderFilter = bool (*)(const Site& site, Ordering what);
/// Null: nobody is asked. For tests, in which something has to fail without each site. A process-wide setting.
/// Thread-safe.
void set_order_filter(OrderFilter filter) noexcept;
/// What the filter says. Every function below asks it.
bool passes(const Site& site, Ordering what);

using Stream = std::optional<c10::Stream>;
using Event = std::optional<c10::Event>;

/// A stream beside the default one; nothing for the CPU.
Stream stream_from_pool(at::Device device);
/// The device's current stream; nothing for the CPU.
Stream current_stream(at::Device device);
/// The device's current stream has come this far; nothing for the CPU.
Event record(at::Device device);

/// How far some streams have come.
struct StreamEvent {
  c10::Stream stream;
  c10::Event event;
};
using StreamEvents = std::vector<StreamEvent>;

namespace detail {
void stream_wait(const Site& site, const c10::Event& event, at::Device device);
void stream_wait(const Site& site, const StreamEvents& events, at::Device device);
void wait_stream(const Site& site, c10::Stream waiting, c10::Stream awaited);
void host_wait(const Site& site, const c10::Event& event);
bool query(const Site& site, const c10::Event& event);
}  // namespace detail

/// The device's current stream waits for the event; the calling thread does not.
inline void stream_wait(const Site& site, const Event& event, at::Device device) {
  if (event) detail::stream_wait(site, *event, device);
}

/// The device's current stream waits for all of these.
inline void stream_wait(const Site& site, const StreamEvents& events, at::Device device) {
  if (!events.empty()) detail::stream_wait(site, events, device);
}

/// The one stream waits for what the other one holds now.
inline void wait_stream(const Site& site, const Stream& waiting, const Stream& awaited) {
  if (waiting && awaited) detail::wait_stream(site, *waiting, *awaited);
}

/// The streams of a device that use some memory; none on the CPU. Thread safety: the caller's.
class StreamUses {
 public:
  /// The device's current stream uses it from now on. Returns whether it did not before.
  bool add(at::Device device) { return !device.is_cpu() && add_current(device); }
  /// The current stream waits for what the others hold now, and is the only one from now on.
  void wait(const Site& site, at::Device device) {
    if (!streams_.empty()) wait_for_others(site, device);
  }
  /// How far they have come now. They are forgotten.
  StreamEvents record();
  /// They wait for what the current stream holds now: before memory that was allocated on one of them is freed.
  void wait_for_current(const Site& site, at::Device device) const;

 private:
  bool add_current(at::Device device);
  void wait_for_others(const Site& site, at::Device device);

  std::vector<c10::Stream> streams_;
};

/// The calling thread waits for the event.
inline void host_wait(const Site& site, const Event& event) {
  if (event) detail::host_wait(site, *event);
}

/// Whether the event has come; the calling thread does not wait.
inline bool query(const Site& site, const Event& event) { return !event || detail::query(site, *event); }

/// The stream, and its device, are current while it lives.
class StreamScope {
 public:
  StreamScope(const Site& site, const Stream& stream) {
    if (stream && passes(site, Ordering::stream_scope)) guard_.reset_stream(*stream);
  }

 private:
  c10::OptionalStreamGuard guard_;
};

/// The device is current while it lives.
class DeviceScope {
 public:
  DeviceScope(const Site& site, at::Device device) {
    if (!device.is_cpu() && passes(site, Ordering::device_scope)) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

/// Copies on the current stream, and does not wait where one side is on a device and the other in pinned memory.
void async_copy(const Site& site, const at::Tensor& to, const at::Tensor& from);

/// The memory of the tensor is not reused before what the device's current stream holds now is done. Does nothing for
/// tensors on other devices.
void record_stream(const Site& site, const at::Tensor& tensor, at::Device device);

}  // namespace muster::device
