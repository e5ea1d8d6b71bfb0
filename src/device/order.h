#pragma once  // for other rooms

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

/// Puts asynchronous device work in order. Every event wait, guard and asynchronous copy of the library is one of these
/// calls and carries the name of its synchronization point. The CPU runs nothing asynchronously: there, streams and
/// events are empty, and calls return at once.
/// Why: docs/decisions/0136-one-place-for-order.md.
namespace muster::device {

/// A synchronization point: a place that puts work in order. The name says what comes after what.
struct SyncPoint {
  const char* name;
};

/// How a synchronization point puts work in order.
enum class SyncKind : uint8_t {
  stream_wait,    ///< a stream waits for an event
  host_wait,      ///< the calling thread waits for an event
  query,          ///< the calling thread asks whether an event is complete; if left out, the answer is yes
  stream_scope,   ///< another stream is current within a scope
  device_scope,   ///< another device is current within a scope
  async_copy,     ///< a non-blocking copy; if left out, a blocking one
  record_stream,  ///< memory is not reused before the current stream has used it
};

/// Asked at every synchronization point on a device, never on the CPU. Returns false to leave the point out.
using SyncFilter = bool (*)(const SyncPoint& point, SyncKind what);
/// Sets the filter; null removes it. For tests, which leave out one point at a time and expect a failure. A
/// process-wide setting. Thread-safe.
void set_sync_filter(SyncFilter filter) noexcept;
/// The filter's answer for this point. Every function below asks it.
bool passes(const SyncPoint& point, SyncKind what);

using Stream = std::optional<c10::Stream>;
using Event = std::optional<c10::Event>;

/// A stream other than the default one; empty for the CPU.
Stream stream_from_pool(at::Device device);
/// The device's current stream; empty for the CPU.
Stream current_stream(at::Device device);
/// Records an event on the device's current stream; empty for the CPU.
Event record(at::Device device);

/// An event and the stream on which it was recorded.
struct StreamEvent {
  c10::Stream stream;
  c10::Event event;
};
using StreamEvents = std::vector<StreamEvent>;

/// Makes the device's current stream wait for the event. The calling thread does not wait.
void stream_wait(const SyncPoint& point, const Event& event, at::Device device);
/// Makes the device's current stream wait for all of these events.
void stream_wait(const SyncPoint& point, const StreamEvents& events, at::Device device);
/// Makes one stream wait for the work that is on the other one so far.
void wait_stream(const SyncPoint& point, const Stream& waiting, const Stream& awaited);
/// Makes the calling thread wait for the event.
void host_wait(const SyncPoint& point, const Event& event);
/// Whether the event is complete. The calling thread does not wait.
bool query(const SyncPoint& point, const Event& event);

/// The streams of a device that use one piece of memory; none on the CPU. Thread safety: the caller's.
class StreamUses {
 public:
  /// Adds the device's current stream. Returns whether it was not among the streams before.
  bool add(at::Device device);
  /// Makes the current stream wait for the work on the other streams so far. It is the only stream from then on.
  void wait(const SyncPoint& point, at::Device device);
  /// Records an event on each stream and forgets the streams.
  StreamEvents record();
  /// Makes the streams wait for the work on the current stream so far. Called before memory that was allocated on one
  /// of them is freed.
  void wait_for_current(const SyncPoint& point, at::Device device) const;

 private:
  std::vector<c10::Stream> streams_;
};

/// Makes a stream and its device current while this object exists.
class StreamScope {
 public:
  StreamScope(const SyncPoint& point, const Stream& stream) {
    if (stream && passes(point, SyncKind::stream_scope)) guard_.reset_stream(*stream);
  }

 private:
  c10::OptionalStreamGuard guard_;
};

/// Makes a device current while this object exists.
class DeviceScope {
 public:
  DeviceScope(const SyncPoint& point, at::Device device) {
    if (!device.is_cpu() && passes(point, SyncKind::device_scope)) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

/// Copies on the current stream. Does not wait if one side is on a device and the other in pinned memory.
void async_copy(const SyncPoint& point, const at::Tensor& to, const at::Tensor& from);

/// Keeps the tensor's memory from being reused before the work on the device's current stream so far is done. Does
/// nothing for tensors on other devices.
void record_stream(const SyncPoint& point, const at::Tensor& tensor, at::Device device);

}  // namespace muster::device
