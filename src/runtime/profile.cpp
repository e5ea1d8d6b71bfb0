#include "runtime/profile.h"

#include <unistd.h>

#include <array>

#include <ATen/record_function.h>

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

}  // namespace

Profile::Profile(std::shared_ptr<Trace> trace, const comm::Communicator& group, const ProfileOptions& options)
    : trace_(std::move(trace)), group_(group), options_(options) {
  group_.internal("the begin of a profile").barrier();
  begin_ = Trace::Clock::now();
  trace_->start();
  Trace* nobody = nullptr;
  if (!options_.operators || !operator_trace.compare_exchange_strong(nobody, trace_.get())) return;
  // For all threads: backward runs on threads of the autograd engine.
  operator_callback_ =
      at::addGlobalCallback(at::RecordFunctionCallback(enter_operator, leave_operator)
                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

Profile::~Profile() { stop(); }

void Profile::stop() {
  trace_->stop();
  if (!operator_callback_) return;
  at::removeCallback(std::exchange(operator_callback_, 0));
  operator_trace = nullptr;
}

void Profile::write() {
  if (auto memory = device::describe_memory(device::current()); !memory.empty())
    trace_->add({std::move(memory), "memory", begin_, Trace::Clock::now()});
  stop();
  const auto [host, main_begin] = main_beginning(group_, begin_);
  const auto origin = host == host_name() ? Trace::Clock::time_point(Nanoseconds(main_begin)) : begin_;
  const auto parts =
      group_.internal("the spans of a profile").gather_bytes(chrome_events(trace_->spans(), group_.rank(), origin));
  const bool main = group_.rank() == 0;
  first_here(group_, main, [&] {
    if (!main) return;
    std::vector<std::string_view> pieces{"{\"traceEvents\":[\n"};
    for (const auto& part : parts) {
      if (pieces.size() > 1) pieces.push_back(",\n");
      pieces.push_back(part);
    }
    pieces.push_back("\n]}\n");
    if (options_.path.has_parent_path()) std::filesystem::create_directories(options_.path.parent_path());
    format::AtomicFile file(options_.path, Durability::none);
    file.write(pieces);
    file.publish();
  });
}

}  // namespace muster::runtime
