#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace muster::comm::mpi {

/// A request or a communicator of MPI, which is a pointer in one MPI library and a number in another.
using Handle = std::uintptr_t;

/// The result of MPI_Query_thread.
enum class ThreadLevel { single, funneled, serialized, multiple };

/// Error codes besides MPI's own, which are positive; 0 is success.
inline constexpr int kFinalized = -1;    ///< MPI has ended in this process, or the process was forked
inline constexpr int kWrongThread = -2;  ///< this thread may not call MPI
inline constexpr int kLate = -3;         ///< the deadline has passed

/// The MPI functions that Muster calls. libmuster_mpi.so implements them; it is the only part that is compiled with
/// MPI's header. No MPI type is in this interface, so Muster itself needs no MPI. Functions return an error code. None
/// of them waits for another rank, except duplicate(). Thread safety: any thread.
/// Why: docs/decisions/0147-mpi-is-a-transport.md.
class Calls {
 public:
  Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  virtual ~Calls() = default;

  /// How the MPI library that was loaded differs from the one this was compiled with; empty: they are compatible.
  virtual std::string version_mismatch() = 0;
  /// Initializes MPI unless the program has. Returns an error text; empty: success.
  virtual std::string initialize() = 0;
  virtual ThreadLevel thread_level() = 0;
  /// Registers `leave`, which is called before MPI ends in this process, in the thread that ends it.
  virtual void on_finalize(std::function<void()> leave) = 0;
  /// Records a failure: the process then ends without MPI_Finalize, and by MPI_Abort if initialize() initialized MPI.
  virtual void fail() noexcept = 0;
  /// Sets how long MPI_Finalize may wait for the other ranks if this library calls it.
  virtual void set_finalize_timeout(std::chrono::milliseconds timeout) noexcept = 0;
  /// Whether this thread may call MPI now: 0, kFinalized or kWrongThread.
  virtual int may_call() noexcept = 0;
  virtual std::string error_string(int code) = 0;

  virtual Handle world() = 0;
  /// Converts the handle that MPI_Comm_c2f gives.
  virtual Handle communicator_of(int fortran_handle) = 0;
  /// Whether the communicator is MPI_COMM_NULL.
  virtual bool is_null(Handle communicator) = 0;
  virtual int rank_and_size(Handle communicator, int& rank, int& size) = 0;
  /// The largest tag.
  virtual int tag_bound() = 0;
  /// Duplicates the communicator; errors in the duplicate are returned. Collective: its ranks.
  virtual int duplicate(Handle communicator, std::chrono::steady_clock::time_point deadline, Handle& made) = 0;
  virtual void free(Handle communicator) noexcept = 0;

  /// Starts a send. It is complete when the receiver has matched it.
  virtual int send(const void* data, std::size_t bytes, int to, int tag, Handle communicator, Handle& request) = 0;
  virtual int recv(void* data, std::size_t bytes, int from, int tag, Handle communicator, Handle& request) = 0;
  /// `bytes`: number of bytes that a completed receive has received.
  virtual int test(Handle& request, bool& done, std::size_t& bytes) = 0;
  /// Cancels a receive. Returns whether MPI no longer uses its memory.
  virtual bool cancel(Handle& request) noexcept = 0;
  /// Sends an empty message without waiting for it.
  virtual int notify(int to, int tag, Handle communicator) = 0;
  virtual int probe(int from, int tag, Handle communicator, bool& there) = 0;
};

/// The function that libmuster_mpi.so exports. Its name changes whenever Calls changes.
inline constexpr const char* kLibrary = "libmuster_mpi.so";
inline constexpr const char* kEntry = "muster_mpi_calls_4";
using Entry = Calls* (*)();

}  // namespace muster::comm::mpi
