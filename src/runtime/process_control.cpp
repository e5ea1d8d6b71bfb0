#include "muster/runtime/detail/process_control.h"

#include <new>

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include "base/log.h"
#include "comm/agreement.h"
#include "device/device.h"
#include "device/memory.h"
#include "muster/base/error.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/batch_size_search.h"
#include "muster/runtime/logger.h"

namespace muster {

namespace {

log::Level level_of_log(int level) {
  constexpr log::Level kLevels[] = {log::Level::debug, log::Level::info, log::Level::warning, log::Level::error};
  return kLevels[level];
}

}  // namespace

Logger::Logger(std::string name, const comm::Communicator& group)
    : name_(std::move(name)), group_(std::make_shared<const comm::Communicator>(group)) {}

bool Logger::wanted(Level level) const noexcept {
  return log::level() <= level_of_log(static_cast<int>(level)) && (where_ != Where::main || group_->rank() == 0);
}

void Logger::write(Level level, bool shown, const std::string& text) const {
  const auto one = [&] {
    if (shown) log::write(level_of_log(static_cast<int>(level)), "[" + name_ + "] " + text);
  };
  if (where_ != Where::in_order) return one();
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank()) one();
    group_->internal("a log line in rank order").barrier();
  }
}

namespace runtime {

void run_turn(const comm::Communicator& group, const std::function<void()>& turn) {
  const auto run = [&] {
    if (turn) turn();
    return std::string();
  };
  comm::all_gather_result(
      group, "the outcome of a block that ranks run in turn", run, [](const comm::Failure& failure) {
        throw UsageError("MU176", "rank " + std::to_string(failure.rank) +
                                      " failed in a block that it runs before other ranks, or together with them: " +
                                      failure.text());
      });
}

bool is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const std::exception& other) {
    const std::string_view text = other.what();
    for (const char* sign : {"out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED"})
      if (text.find(sign) != std::string_view::npos) return true;
  } catch (...) {}
  return false;
}

namespace {

/// The allocator's error, followed by the device's memory use.
std::string text_of_exhaustion(const std::exception_ptr& error) {
  std::string text = "out of memory";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& other) {
    text = other.what_without_backtrace();
  } catch (const std::exception& other) {
    text = other.what();
  } catch (...) {}
  const auto memory = device::describe_memory(device::current());
  return memory.empty() ? text : text + "; " + memory;
}

}  // namespace

void empty_device_cache() {
  if (at::accelerator::deviceCount() > 0) at::accelerator::emptyCache();
}

bool agree_on_trial(const comm::Communicator& group, const std::exception_ptr& error) {
  // A rank that lost the others because they abandoned the attempt is not a root cause.
  bool lost = false, memory = false;
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      lost = true;
    } catch (...) {
      memory = is_out_of_memory(error);
    }
  }
  comm::CoalescedAllReduce scalars(group, "the outcome of a try of a batch size");
  const auto full = scalars.add(memory, comm::ReduceOp::max),
             failed = scalars.add(error && !memory && !lost, comm::ReduceOp::max),
             left = scalars.add(lost, comm::ReduceOp::max);
  scalars.run();
  if (scalars.result(failed) > 0) {
    if (error) std::rethrow_exception(error);
    throw UsageError(
        "MU176",
        "another rank failed while a batch size was tried, for another reason than memory; look at its output");
  }
  if (scalars.result(full) > 0) {
    if (error && group.rank() == 0) log::info("a batch size does not fit: ", text_of_exhaustion(error));
    return false;
  }
  if (scalars.result(left) > 0) {
    if (error) std::rethrow_exception(error);
    throw UsageError("MU176", "another rank lost this one while a batch size was tried; look at its output");
  }
  return true;
}

int64_t smaller_batch_size(int64_t size, const BatchSizeOptions& options) {
  const auto next = options.reduce_batch_size ? options.reduce_batch_size(size) : size * 9 / 10;
  if (next < 1) {
    const auto memory = device::describe_memory(device::current());
    throw UsageError("MU185", "no batch size fits into memory, not even 1" + (memory.empty() ? "" : ": " + memory));
  }
  if (next >= size)
    throw UsageError("MU185", "reduce_batch_size made " + std::to_string(next) + " of " + std::to_string(size) +
                                  "; it must return less");
  return next;
}

}  // namespace runtime
}  // namespace muster
