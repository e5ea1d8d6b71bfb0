#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace muster::comm::mpi {

/// A request or a communicator of MPI, which is a pointer in one MPI and a number in another.
using Handle = std::uintptr_t;

/// What MPI_Query_thread says.
enum class ThreadLevel { single, funneled, serialized, multiple };

/// A collective of MPI's own. Reductions are sums.
struct Collective {
  enum class Kind { all_gather, all_reduce, broadcast, reduce_scatter };
  enum class Type { bytes, float32, float64, int32, int64 };
  Kind kind;
  Type type = Type::bytes;
  const void* in = nullptr;  ///< reduce_scatter alone; the others find what this rank gives in `out`
  void* out = nullptr;
  int count = 0;  ///< elements of the type: those of all_reduce and broadcast; of one rank otherwise
  int root = 0;
};

/// Error codes beside MPI's own, which are positive; 0 is success.
inline constexpr int kFinalized = -1;    ///< MPI has ended in this process, or the process was forked
inline constexpr int kWrongThread = -2;  ///< this thread may not call MPI
inline constexpr int kLate = -3;         ///< the deadline has passed

/// What Muster calls of MPI. libmuster_mpi.so implements it, the only part that is compiled with MPI's header; nothing
/// of MPI is in this interface, so that Muster itself needs none.
/// Functions return an error code, and none waits for another rank but duplicate(). Thread safety: any thread.
class Calls {
 public:
  Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  virtual ~Calls() = default;

  /// How the MPI that was loaded differs from the one it was compiled with; empty: they go together.
  virtual std::string version_mismatch() = 0;
  /// Initialises MPI, unless the program has. Returns what failed; empty: nothing.
  virtual std::string initialize() = 0;
  virtual ThreadLevel thread_level() = 0;
  /// `leave` is called before MPI ends in this process, in the thread that ends it.
  virtual void on_finalize(std::function<void()> leave) = 0;
  /// After a failure the process ends without MPI_Finalize: by MPI_Abort if initialize() initialised MPI.
  virtual void fail() noexcept = 0;
  /// How long MPI_Finalize, where it is called here, may wait for the other ranks.
  virtual void set_finalize_timeout(std::chrono::milliseconds timeout) noexcept = 0;
  /// Whether this thread may call MPI now: 0, kFinalized or kWrongThread.
  virtual int may_call() noexcept = 0;
  virtual std::string error_string(int code) = 0;

  virtual Handle world() = 0;
  /// By the handle that MPI_Comm_c2f gives.
  virtual Handle communicator_of(int fortran_handle) = 0;
  /// Whether it is MPI_COMM_NULL.
  virtual bool is_null(Handle communicator) = 0;
  virtual int rank_and_size(Handle communicator, int& rank, int& size) = 0;
  /// Tags are at most this.
  virtual int tag_bound() = 0;
  /// Collective: a communicator of the same ranks, whose errors are returned.
  virtual int duplicate(Handle communicator, std::chrono::steady_clock::time_point deadline, Handle& made) = 0;
  virtual void free(Handle communicator) noexcept = 0;

  /// It is done when the receiver has matched it.
  virtual int send(const void* data, std::size_t bytes, int to, int tag, Handle communicator, Handle& request) = 0;
  virtual int recv(void* data, std::size_t bytes, int from, int tag, Handle communicator, Handle& request) = 0;
  /// `bytes`: what a receive that is done received.
  virtual int test(Handle& request, bool& done, std::size_t& bytes) = 0;
  /// Gives up a receive. Returns whether MPI has let go of its memory.
  virtual bool cancel(Handle& request) noexcept = 0;
  /// Sends an empty message that nobody has to wait for.
  virtual int notify(int to, int tag, Handle communicator) = 0;
  virtual int probe(int from, int tag, Handle communicator, bool& there) = 0;

  /// Starts a collective of MPI's own, in place where MPI can. It cannot be cancelled.
  virtual int start(const Collective& collective, Handle communicator, Handle& request) = 0;
};

/// The function that libmuster_mpi.so exports. Its name changes whenever Calls does.
inline constexpr const char* kLibrary = "libmuster_mpi.so";
inline constexpr const char* kEntry = "muster_mpi_calls_3";
using Entry = Calls* (*)();

}  // namespace muster::comm::mpi
