#pragma once  // for other rooms

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
/// the library is one of these calls, with the name of its synchronization point. Nothing runs later on the CPU: there,
/// a stream and an event are nothing, and calls return at once.
namespace muster::device {

/// A synchronization point: a place that puts work in order. The name says what comes after what.
struct SyncPoint {
  const char* name;
};

/// How a point puts work in order.
enum class SyncKind : uint8_t {
  stream_wait,    ///< a stream waits for an event
  host_wait,      ///< the calling thread waits for an event
  query,          ///< the calling thread asks whether an event is complete; left out, the answer is yes
  stream_scope,   ///< the current stream is another one for a while
  device_scope,   ///< the current device is another one for a while
  async_copy,     ///< a non-blocking copy; left out, a blocking one
  record_stream,  ///< memory is not reused before the current stream has used it
};

/// Asked at every synchronization point, on a device only. False: it is left out.
using SyncFilter = bool (*)(const SyncPoint& point, SyncKind what);
/// Null: nobody is asked. For tests, which leave out one point at a time and expect a failure. A process-wide setting.
/// Thread-safe.
void set_sync_filter(SyncFilter filter) noexcept;
/// What the filter says. Every function below asks it.
bool passes(const SyncPoint& point, SyncKind what);

using Stream = std::optional<c10::Stream>;
using Event = std::optional<c10::Event>;

/// A stream beside the default one; nothing for the CPU.
Stream stream_from_pool(at::Device device);
/// The device's current stream; nothing for the CPU.
Stream current_stream(at::Device device);
/// Records an event on the device's current stream; nothing for the CPU.
Event record(at::Device device);

/// An event that was recorded on a stream.
struct StreamEvent {
  c10::Stream stream;
  c10::Event event;
};
using StreamEvents = std::vector<StreamEvent>;

namespace detail {
void stream_wait(const SyncPoint& point, const c10::Event& event, at::Device device);
void stream_wait(const SyncPoint& point, const StreamEvents& events, at::Device device);
void wait_stream(const SyncPoint& point, c10::Stream waiting, c10::Stream awaited);
void host_wait(const SyncPoint& point, const c10::Event& event);
bool query(const SyncPoint& point, const c10::Event& event);
}  // namespace detail

/// The device's current stream waits for the event; the calling thread does not.
inline void stream_wait(const SyncPoint& point, const Event& event, at::Device device) {
  if (event) detail::stream_wait(point, *event, device);
}

/// The device's current stream waits for all of these.
inline void stream_wait(const SyncPoint& point, const StreamEvents& events, at::Device device) {
  if (!events.empty()) detail::stream_wait(point, events, device);
}

/// The one stream waits for the work that is on the other one so far.
inline void wait_stream(const SyncPoint& point, const Stream& waiting, const Stream& awaited) {
  if (waiting && awaited) detail::wait_stream(point, *waiting, *awaited);
}

/// The streams of a device that use some memory; none on the CPU. Thread safety: the caller's.
class StreamUses {
 public:
  /// The device's current stream uses it from now on. Returns whether it did not before.
  bool add(at::Device device) { return !device.is_cpu() && add_current(device); }
  /// The current stream waits for the work on the others so far, and is the only one from now on.
  void wait(const SyncPoint& point, at::Device device) {
    if (!streams_.empty()) wait_for_others(point, device);
  }
  /// Records an event on each of them. They are forgotten.
  StreamEvents record();
  /// They wait for the work on the current stream so far: before memory that was allocated on one of them is freed.
  void wait_for_current(const SyncPoint& point, at::Device device) const;

 private:
  bool add_current(at::Device device);
  void wait_for_others(const SyncPoint& point, at::Device device);

  std::vector<c10::Stream> streams_;
};

/// The calling thread waits for the event.
inline void host_wait(const SyncPoint& point, const Event& event) {
  if (event) detail::host_wait(point, *event);
}

/// Whether the event is complete; the calling thread does not wait.
inline bool query(const SyncPoint& point, const Event& event) { return !event || detail::query(point, *event); }

/// The stream, and its device, are current while it lives.
class StreamScope {
 public:
  StreamScope(const SyncPoint& point, const Stream& stream) {
    if (stream && passes(point, SyncKind::stream_scope)) guard_.reset_stream(*stream);
  }

 private:
  c10::OptionalStreamGuard guard_;
};

/// The device is current while it lives.
class DeviceScope {
 public:
  DeviceScope(const SyncPoint& point, at::Device device) {
    if (!device.is_cpu() && passes(point, SyncKind::device_scope)) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

/// Copies on the current stream, and does not wait where one side is on a device and the other in pinned memory.
void async_copy(const SyncPoint& point, const at::Tensor& to, const at::Tensor& from);

/// The memory of the tensor is not reused before the work on the device's current stream so far is done. Does nothing
/// for tensors on other devices.
void record_stream(const SyncPoint& point, const at::Tensor& tensor, at::Device device);

}  // namespace muster::device
