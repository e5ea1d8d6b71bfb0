#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>

#include <c10/util/Exception.h>

#include "sim/machine.h"
#include "sim/memory.h"

namespace muster::sim {
namespace {

char* device_begin = nullptr;  // addresses that fault
char* device_end = nullptr;
char* kernel_begin = nullptr;  // the same bytes at the addresses that kernels use
struct sigaction before = {};  // handler of faults elsewhere

char* reserve(size_t bytes, int protection) {
  void* at = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(at != MAP_FAILED, "the simulated accelerator finds no room for ", bytes, " bytes of addresses");
  return static_cast<char*>(at);
}

void report_fault(const void* address) {
  char text[200];
  const int length = std::snprintf(text, sizeof text,
                                   "muster: the host accessed memory of the simulated accelerator at %p, of device %d; "
                                   "the call came from:\n",
                                   address, device_of_pointer(address));
  [[maybe_unused]] const auto written = ::write(2, text, static_cast<size_t>(length));
  void* frames[24];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 24), 2);
}

/// Whether the faulting access was a write, if the processor tells.
bool is_write([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  return (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  return true;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (admit_pinned(info->si_addr, is_write(context))) return;
  const bool ours = is_device_pointer(info->si_addr);
  if (ours) report_fault(info->si_addr);
  if (!ours && before.sa_flags & SA_SIGINFO && before.sa_sigaction) return before.sa_sigaction(signal, info, context);
  if (!ours && !(before.sa_flags & SA_SIGINFO) && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(signal);
  ::signal(SIGSEGV, SIG_DFL);  // the access is repeated and ends the process
}

}  // namespace

void reserve_addresses(int devices) {
  const auto bytes = kBytesOfAddresses * static_cast<size_t>(devices);
  device_begin = reserve(bytes, PROT_NONE);
  device_end = device_begin + bytes;
  kernel_begin = reserve(bytes, PROT_READ | PROT_WRITE);
  void* warm[1];
  ::backtrace(warm, 1);  // loads the libraries that it needs now instead of in the handler
  struct sigaction action = {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGSEGV, &action, &before);
}

bool is_device_pointer(const void* pointer) { return pointer >= device_begin && pointer < device_end; }

int device_of_pointer(const void* pointer) {
  return static_cast<int>(static_cast<size_t>(static_cast<const char*>(pointer) - device_begin) / kBytesOfAddresses);
}

char* device_address(int device) { return device_begin + kBytesOfAddresses * static_cast<size_t>(device); }

void* kernel_pointer(const void* device_pointer) {
  if (!device_pointer) return nullptr;
  TORCH_CHECK(is_device_pointer(device_pointer),
              "a tensor of the simulated accelerator lies in memory that is not the "
              "device's: ",
              device_pointer);
  return kernel_begin + (static_cast<const char*>(device_pointer) - device_begin);
}

}  // namespace muster::sim
