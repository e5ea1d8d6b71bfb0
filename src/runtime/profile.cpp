#include "runtime/profile.h"

#include <unistd.h>

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>

#include "device/device.h"
#include "device/memory.h"
#include "format/atomic_file.h"
#include "muster/runtime/detail/process_control.h"
#include "muster/runtime/detail/values.h"

namespace muster::runtime {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

struct OpenOperator : at::ObserverContext {
  explicit OpenOperator(Trace& trace) : trace(trace), begin(Trace::Clock::now()) {}
  Trace& trace;
  Trace::Clock::time_point begin;
};

/// LibTorch calls plain functions back, so the trace is in a global. One profile at a time in a process records
/// operators.
std::atomic<Trace*> operator_trace{nullptr};

std::unique_ptr<at::ObserverContext> enter_operator(const at::RecordFunction&) {
  auto* trace = operator_trace.load();
  return trace ? std::make_unique<OpenOperator>(*trace) : nullptr;
}

void leave_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* open = static_cast<OpenOperator*>(context);
  if (!open) return;
  const bool backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  open->trace.add(
      {function.name(), backward ? "operators of backward" : "operators", open->begin, Trace::Clock::now()});
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// The main rank's machine, and the time on its clock at which its profile began.
std::pair<std::string, int64_t> main_beginning(const comm::Communicator& group, Trace::Clock::time_point begin) {
  const auto timed =
      group.internal("the begin of a profile")
          .broadcast_bytes(std::to_string(Nanoseconds(begin.time_since_epoch()).count()) + " " + host_name());
  const auto space = timed.find(' ');
  return {timed.substr(space + 1), std::stoll(timed.substr(0, space))};
}

/// Runs f while the trace records.
void record(const std::function<void()>& f, Trace& trace, bool with_operators) {
  trace.start();
  Trace* nobody = nullptr;
  at::CallbackHandle callback = 0;
  if (with_operators && operator_trace.compare_exchange_strong(nobody, &trace))
    // For all threads: backward runs on threads of the autograd engine.
    callback = at::addGlobalCallback(at::RecordFunctionCallback(enter_operator, leave_operator)
                                         .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  const auto stop = c10::make_scope_exit([&] {
    trace.stop();
    if (callback == 0) return;
    at::removeCallback(callback);
    operator_trace = nullptr;
  });
  const auto begin = Trace::Clock::now();
  f();
  if (auto memory = device::describe_memory(device::current()); !memory.empty())
    trace.add({std::move(memory), "memory", begin, Trace::Clock::now()});
}

}  // namespace

void record_profile(const std::function<void()>& f, Trace& trace, const comm::Communicator& group,
                    const ProfileOptions& options) {
  group.internal("the begin of a profile").barrier();
  const auto begin = Trace::Clock::now();
  record(f, trace, options.operators);
  const auto [host, main_begin] = main_beginning(group, begin);
  const auto origin = host == host_name() ? Trace::Clock::time_point(Nanoseconds(main_begin)) : begin;
  const auto parts =
      group.internal("the spans of a profile").gather_bytes(chrome_events(trace.spans(), group.rank(), origin));
  const bool main = group.rank() == 0;
  first_here(group, main, [&] {
    if (!main) return;
    std::vector<std::string_view> pieces{"{\"traceEvents\":[\n"};
    for (const auto& part : parts) {
      if (pieces.size() > 1) pieces.push_back(",\n");
      pieces.push_back(part);
    }
    pieces.push_back("\n]}\n");
    if (options.path.has_parent_path()) std::filesystem::create_directories(options.path.parent_path());
    format::AtomicFile file(options.path, Durability::none);
    file.write(pieces);
    file.publish();
  });
}

}  // namespace muster::runtime
