#include "muster/parallel/comm_hook.h"

#include <c10/util/Exception.h>

#include "muster/base/error.h"

namespace muster::parallel {
namespace {

class FunctionHook final : public CommHook {
 public:
  using Start = std::function<Finish(const GradientBucket&, const comm::Communicator&)>;
  explicit FunctionHook(Start start) : start_(std::move(start)) {}
  Finish start(const GradientBucket& bucket, const comm::Communicator& group) override { return start_(bucket, group); }
  std::string_view name() const override { return "custom"; }

 private:
  Start start_;
};

class CastHook final : public CommHook {
 public:
  explicit CastHook(at::ScalarType dtype) : dtype_(dtype) {}
  Finish start(const GradientBucket& bucket, const comm::Communicator& group) override {
    auto cast = bucket.flat.to(dtype_, /*non_blocking=*/false, /*copy=*/true);
    auto work = group.start_all_reduce(cast, comm::ReduceOp::sum);
    return [cast, work, flat = bucket.flat]() mutable {
      work.wait();
      flat.copy_(cast);
    };
  }
  std::string_view name() const override { return dtype_ == at::kHalf ? "fp16" : "bf16"; }

 private:
  at::ScalarType dtype_;
};

}  // namespace

std::shared_ptr<CommHook> make_comm_hook(FunctionHook::Start start) {
  return std::make_shared<FunctionHook>(std::move(start));
}
std::shared_ptr<CommHook> make_cast_hook(at::ScalarType dtype) { return std::make_shared<CastHook>(dtype); }

std::shared_ptr<CommHook> chosen_comm_hook(const DdpOptions& options) {
  if (options.custom_hook) {
    if (options.comm_hook != "none")
      throw ConfigError("MU157", "the options name the comm_hook '" + options.comm_hook +
                                     "' and give a custom_hook; give one of them");
    return options.custom_hook;
  }
  require_comm_hook(options.comm_hook);
  if (options.comm_hook == "none") return nullptr;
  if (options.comm_hook == "fp16") return make_cast_hook(at::kHalf);
  if (options.comm_hook == "bf16") return make_cast_hook(at::kBFloat16);
  if (options.comm_hook == "powersgd") return make_power_sgd_hook(options.power_sgd);
  TORCH_INTERNAL_ASSERT(false, "kCommHooks has '", options.comm_hook, "', which has no branch here");
}

}  // namespace muster::parallel
