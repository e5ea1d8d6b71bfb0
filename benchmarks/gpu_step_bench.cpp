// Steps on a device. Arguments: cuda or cpu; then "tiny", to try the program and measure nothing. Cases, "MODEL WAY":
//   MODEL  mlp, or gpt: 124 million parameters, bf16, sequences of 1024
//   WAY    accelerator, fabric, trainer; fsdp: sharded over a world of one, with parameters used in bf16;
//          recompute: gpt, with activations of its blocks made again;
//          exact or plain: clipped by Muster's norm, or by one that is rounded as it comes; unclipped
// Each gives the microseconds of a step or, after the word "waits", how often the host waits for the device in one.
#include <dlfcn.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <torch/torch.h>

#include "mlp.h"
#include "models.h"
#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/parallel/sharded_options.h"
#include "muster/trainer.h"
#include "protocol.h"

namespace {

namespace F = torch::nn::functional;
using bench::Batch;
using Clock = std::chrono::steady_clock;
constexpr double kMostNorm = 1.0;

struct Size {
  bool tiny = false;
  int steps = 0, warm_up = 0;
};

/// The work that is measured, and what it is asked for.
struct Asked {
  at::Device device;
  Size size;
  std::string way;
  bool waits = false;
};

struct Mlp {
  using Net = torch::nn::Sequential;
  static constexpr double kRate = 1e-3;
  static constexpr const char* kPrecision = "32-true";
  static Size size(bool tiny) { return tiny ? Size{true, 4, 2} : Size{false, 1000, 100}; }
  static Net make(const Size&) { return bench::make_mlp(); }
  static std::vector<Batch> batches(const Size&) { return bench::make_batches(32); }
  static at::Tensor loss(auto&& forward, const Batch& batch) {
    return F::cross_entropy(forward(batch.data), batch.target);
  }
};

struct Gpt {
  using Net = bench::GPT;
  static constexpr double kRate = 1e-4;
  static constexpr const char* kPrecision = "bf16-mixed";
  static const bench::GPTShape& shape(const Size& size) { return size.tiny ? bench::kTinyGPT : bench::kGPT124M; }
  static Size size(bool tiny) { return tiny ? Size{true, 2, 2} : Size{false, 20, 5}; }
  static Net make(const Size& size) {
    torch::manual_seed(0);
    return Net(shape(size));
  }
  static std::vector<Batch> batches(const Size& size) {
    torch::manual_seed(1);
    std::vector<Batch> all;
    for (int i = 0; i < 4; ++i) {
      const auto text = bench::make_text(shape(size), size.tiny ? 2 : 8);
      all.emplace_back(text, torch::zeros({text.size(0)}));
    }
    return all;
  }
  static at::Tensor loss(auto&& forward, const Batch& batch) { return forward(batch.data); }
};

template <class Task>
std::vector<Batch> batches_on(const Asked& asked) {
  auto all = Task::batches(asked.size);
  for (auto& batch : all) {
    batch.data = batch.data.to(asked.device);
    batch.target = batch.target.to(asked.device);
  }
  return all;
}

/// How often this process has waited for a GPU; host_waits.cpp counts it.
long host_waits() {
  using Count = long();
  auto* const count = reinterpret_cast<Count*>(::dlsym(RTLD_DEFAULT, "bench_host_waits"));
  if (!count) throw std::runtime_error("waits are not counted: libbench_host_waits.so is not in LD_PRELOAD");
  return count();
}

/// From the end of the warm-up on, what the steps take.
class Meter {
 public:
  explicit Meter(const Asked& asked) : asked_(asked) {}
  void begin(const at::Tensor& last_loss) {
    (void)last_loss.item<double>();  // the device has ended its work
    if (asked_.waits) waits_ = host_waits();
    begin_ = Clock::now();
  }
  bench::Measured end(const at::Tensor& last_loss) {
    const double waits = asked_.waits ? static_cast<double>(host_waits() - waits_) : 0;
    const double check = last_loss.item<double>();
    const double microseconds = std::chrono::duration<double, std::micro>(Clock::now() - begin_).count();
    return {.value = (asked_.waits ? waits : microseconds) / asked_.size.steps, .check = check};
  }

 private:
  const Asked& asked_;
  long waits_ = 0;
  Clock::time_point begin_;
};

template <class Task>
torch::optim::AdamW adamw(const typename Task::Net& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(Task::kRate));
}

template <class Task, class Api, class Model, class Clip>
bench::Measured loop(const Asked& asked, Api& api, Model& model, auto& optimizer, const Clip& clip) {
  const auto batches = batches_on<Task>(asked);
  Meter meter(asked);
  at::Tensor loss;
  for (int i = 0; i < asked.size.warm_up + asked.size.steps; ++i) {
    if (i == asked.size.warm_up) meter.begin(loss);
    optimizer.zero_grad();
    loss = Task::loss(model, batches[static_cast<size_t>(i) % batches.size()]);
    api.backward(loss);
    clip();
    optimizer.step();
  }
  return meter.end(loss);
}

void clip_plainly(const std::vector<at::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  const auto norm = at::stack(at::_foreach_norm(gradients, 2)).norm();
  at::_foreach_mul_(gradients, (kMostNorm / (norm + 1e-6)).clamp_max(1));
}

template <class Task>
bench::Measured by_accelerator(const Asked& asked) {
  const bool shards = asked.way == "fsdp";
  muster::Accelerator accelerator(
      {.cpu = asked.device.is_cpu(),
       .mixed_precision = muster::Precision::parse(shards ? "no" : Task::kPrecision),
       .recompute = {.blocks =
                         asked.way == "recompute" ? std::vector<std::string>{"Block"} : std::vector<std::string>()},
       .strategy = shards ? muster::Strategy(muster::FSDP{.param_dtype = "bf16"}) : muster::Strategy("auto")});
  auto net = Task::make(asked.size);
  auto [model, optimizer] = accelerator.prepare(net, adamw<Task>(net));
  return loop<Task>(asked, accelerator, model, optimizer, [&, &model = model] {
    if (asked.way == "exact") accelerator.clip_grad_norm_(model, kMostNorm);
    if (asked.way == "plain") clip_plainly(net->parameters());
  });
}

template <class Task>
bench::Measured by_fabric(const Asked& asked) {
  muster::Fabric fabric(
      {.accelerator = asked.device.is_cpu() ? "cpu" : "cuda", .precision = muster::Precision::parse(Task::kPrecision)});
  fabric.launch();
  auto net = Task::make(asked.size);
  auto [model, optimizer] = fabric.setup(net, adamw<Task>(net));
  return loop<Task>(asked, fabric, model, optimizer, [] {});
}

template <class Task>
struct Module : muster::TrainerModule {
  explicit Module(const Asked& all) : asked(all), meter(all) {}
  torch::Tensor training_step(Batch& batch, int64_t i) {
    if (i == asked.size.warm_up) meter.begin(loss);
    if (i == asked.size.warm_up + asked.size.steps) measured = meter.end(loss);
    return loss = Task::loss([&](const at::Tensor& x) { return net->forward(x); }, batch);
  }
  muster::Optimizers configure_optimizers() override { return adamw<Task>(net); }

  const Asked& asked;
  typename Task::Net net = register_module("net", Task::make(asked.size));
  Meter meter;
  at::Tensor loss;
  std::optional<bench::Measured> measured;
};

template <class Task>
bench::Measured by_trainer(const Asked& asked) {
  const auto few = batches_on<Task>(asked);
  std::vector<Batch> batches;
  for (int i = 0; i <= asked.size.warm_up + asked.size.steps; ++i)
    batches.push_back(few[static_cast<size_t>(i) % few.size()]);
  Module<Task> module(asked);
  muster::Trainer trainer({.accelerator = asked.device.is_cpu() ? "cpu" : "cuda",
                           .enable_checkpointing = false,
                           .enable_model_summary = false,
                           .enable_progress_bar = false,
                           .max_epochs = 1,
                           .precision = muster::Precision::parse(Task::kPrecision)});
  trainer.fit(module, muster::DataLoader(muster::from_batches(batches)));
  return module.measured.value();
}

template <class Task>
bench::Measured measure(Asked asked, bool tiny) {
  asked.size = Task::size(tiny);
  if (asked.way == "fabric") return by_fabric<Task>(asked);
  if (asked.way == "trainer") return by_trainer<Task>(asked);
  for (const char* known : {"accelerator", "fsdp", "exact", "plain", "recompute", "unclipped"})
    if (asked.way == known) return by_accelerator<Task>(asked);
  throw std::invalid_argument("unknown case");
}

bench::Measured measure(std::string name, at::Device device, bool tiny) {
  const bool waits = name.starts_with("waits ");
  if (waits) name.erase(0, 6);
  const auto space = name.find(' ');
  const Asked asked{.device = device, .size = {}, .way = name.substr(space + 1), .waits = waits};
  return name.substr(0, space) == "mlp" ? measure<Mlp>(asked, tiny) : measure<Gpt>(asked, tiny);
}

}  // namespace

int main(int argc, char** argv) {
  const at::Device device(argc > 1 ? argv[1] : "cuda");
  const bool tiny = argc > 2 && std::string(argv[2]) == "tiny";
  return bench::serve([&](const std::string& name) { return measure(name, device, tiny); });
}
