#pragma once  // for other rooms

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace muster {

/// Owns a file descriptor, and closes it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// The ends of a pipe.
struct Pipe {
  Descriptor reading, writing;
};

/// A new pipe, closed on exec. Empty, with the reason in errno, if there is none.
inline Pipe make_pipe() {
  int ends[] = {-1, -1};
  static_cast<void>(pipe2(ends, O_CLOEXEC));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace muster
