// Ranks whose steps go differently end with equal weights, or all of them fail.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/parallel/local_sgd.h"
#include "muster/strategy/strategy.h"
#include "parallel/sharded_model.h"
#include "runtime/gradients.h"
#include "runtime/prepared_model.h"
#include "runtime/prepared_optimizer.h"

namespace muster::runtime::seeded {
namespace {

using torch::Tensor;

/// How a micro-batch of a rank goes.
enum class Fate { loss, empty, no_backward, unused, overflow, throws_forward, throws_backward };

struct UserError : std::runtime_error {
  UserError() : std::runtime_error("the program's own") {}
};

/// Backward of what is passed through it throws.
struct Throwing : torch::autograd::Function<Throwing> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw UserError();
  }
};

struct Net;

/// Computes the net's body again in backward, as recompute written by hand does.
struct Again : torch::autograd::Function<Again> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, Net* net);
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list slopes);
};

struct Net : torch::nn::Module {
  Net() {
    const torch::NoGradGuard no_grad;
    int i = 0;
    for (auto& parameter : parameters())
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kFloat) * 1.3 + i++).view_as(parameter) * 0.4);
  }
  Tensor hidden(const Tensor& x) { return torch::tanh(body->forward(x)); }
  Tensor forward(const Tensor& x, bool uses_right, bool again) {
    const auto h = again ? Again::apply(x.clone().requires_grad_(), this) : hidden(x);
    const auto out = left->forward(h);
    return uses_right ? out + right->forward(h).square() : out;
  }
  torch::nn::Linear body{register_module("body", torch::nn::Linear(6, 9))},
      left{register_module("left", torch::nn::Linear(9, 5))}, right{register_module("right", torch::nn::Linear(9, 5))};
};

Tensor Again::forward(torch::autograd::AutogradContext* context, const Tensor& x, Net* net) {
  context->save_for_backward({x});
  context->saved_data["net"] = reinterpret_cast<int64_t>(net);
  return net->hidden(x);
}

torch::autograd::variable_list Again::backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::variable_list slopes) {
  auto* net = reinterpret_cast<Net*>(context->saved_data["net"].toInt());
  const auto x = context->get_saved_variables()[0].detach().requires_grad_();
  Tensor y;
  {
    const torch::AutoGradMode on(true);
    y = net->hidden(x);
  }
  torch::autograd::backward({y}, {slopes[0]});
  return {x.grad(), Tensor()};
}

/// One way to train.
struct Way {
  std::string name;
  Strategy strategy;
  bool takes_unused = true;  ///< zeros count where a rank has no gradient
  bool touches = false;      ///< each touch of parameters communicates
  bool exact = true;         ///< gradients are communicated as they are
  bool local = false;        ///< local SGD
};

std::vector<Way> ways() {
  std::vector<Way> all;
  const parallel::PowerSgdOptions power{.min_compression_rate = 0.1, .start_iteration = 1};
  for (const auto name : parallel::kCommHooks) {
    const std::string hook(name);
    all.push_back({"ddp, hook " + hook,
                   DDP{.bucket_cap_mb = 1e-4, .comm_hook = hook, .first_bucket_mb = 1e-4, .power_sgd = power}, false,
                   false, hook == "none"});
    all.push_back({"ddp, unused allowed, hook " + hook,
                   DDP{.bucket_cap_mb = hook == "bf16" ? 25 : 1e-4,
                       .comm_hook = hook,
                       .find_unused_parameters = true,
                       .first_bucket_mb = 1e-4,
                       .power_sgd = power},
                   true, false, hook == "none"});
  }
  all.push_back({"ddp, one bucket", DDP{.find_unused_parameters = true}});
  all.push_back({"local SGD", "ddp", true, false, false, true});
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full})
    all.push_back({"stage " + std::to_string(static_cast<int>(stage)), FSDP{.stage = stage, .unit_min_elements = 1},
                   true, stage == ShardStage::full});
  return all;
}

struct Job {
  uint64_t seed = 0;
  Way way;
  int world = 2, steps = 5, micro = 1;
  bool scaled = false, clips = false, again = false, zeroes = false;
  std::vector<std::vector<Fate>> fates = {};  // of each rank's micro-batches

  std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": " << way.name << ", " << world << " ranks, " << micro << " micro-batches"
        << (scaled ? ", scaled" : "") << (clips ? ", clipped" : "") << (again ? ", recomputed" : "")
        << (zeroes ? ", gradients set to zero" : "") << ";";
    for (const auto& of_rank : fates) {
      out << " |";
      for (const auto fate : of_rank) out << ' ' << static_cast<int>(fate);
    }
    return out.str();
  }
  bool has(std::initializer_list<Fate> any) const {
    for (const auto& of_rank : fates)
      for (const auto fate : of_rank)
        if (std::find(any.begin(), any.end(), fate) != any.end()) return true;
    return false;
  }
};

Job drawn(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  const auto all = ways();
  Job job{.seed = seed, .way = all[seed % all.size()], .world = below(2) ? 3 : 2};
  job.micro = below(3) ? 1 : 2;
  job.scaled = !job.way.local && below(2);
  job.clips = below(2);
  job.again = below(3) == 0;
  job.zeroes = below(4) == 0;
  std::vector<Fate> rare{Fate::empty, Fate::no_backward, Fate::unused};
  if (job.scaled) rare.push_back(Fate::overflow);
  if (below(4) == 0) rare.insert(rare.end(), {Fate::throws_forward, Fate::throws_backward});
  const bool quiet = below(6) == 0;
  job.fates.assign(job.world, std::vector<Fate>(job.steps * job.micro, Fate::loss));
  for (auto& of_rank : job.fates)
    for (auto& fate : of_rank)
      if (!quiet && below(4) == 0) fate = rare[below(rare.size())];
  return job;
}

Tensor inputs(int number, int rank) {
  return torch::cos(torch::arange(24, torch::kFloat) * 0.7 + number * 1.1 + 3 * rank).view({4, 6});
}

Tensor loss_of(Net& net, const Job& job, int number, int rank) {
  const auto fate = job.fates[rank][number];
  auto x = inputs(number, rank);
  auto y = net.forward(x, fate != Fate::unused, job.again);
  if (fate == Fate::throws_backward) y = Throwing::apply(y);
  if (fate == Fate::overflow) y = y * 1e38;
  return y.pow(2).mean() + y.sum() * 0.01;
}

bool has_loss(Fate fate) { return fate == Fate::loss || fate == Fate::unused || fate == Fate::overflow; }

GradScalerOptions scaling() { return {.growth_interval = 3, .init_scale = 1024}; }
torch::optim::SGDOptions rates() { return torch::optim::SGDOptions(0.05).momentum(0.9); }
constexpr double kMaxNorm = 0.5;

/// A rank's program, as the APIs run it.
class Rank {
 public:
  Rank(const Job& job, const comm::Communicator& group)
      : job_(job), group_(group), net_(std::make_shared<Net>()), registry_(std::make_shared<ModelRegistry>()),
        trace_(std::make_shared<Trace>()),
        accumulation_(std::make_shared<Accumulation>(
            GradientAccumulationOptions{.num_steps = job.micro, .weighting = GradientWeighting::fixed}, group)) {
    model_ = std::make_shared<PreparedModel>(
        PreparedModel{net_, make_strategy(job.way.strategy, group.size(), group.size())->setup_module(*net_, group),
                      precision::PrecisionPolicy("32-true"), c10::DeviceType::CPU, trace_});
    registry_->add(model_);
    OptimizerContext context{.accumulation = accumulation_,
                             .joined = std::make_shared<JoinedSteps>(registry_),
                             .after_step = {},
                             .before_reduction = [this] { rescale_gradients(); },
                             .group = group_,
                             .optimizers = optimizers_,
                             .registry = registry_,
                             .scaling = {},
                             .trace = trace_};
    if (job.scaled) context.scaling = scaling();
    optimizer_ =
        std::make_shared<PreparedOptimizer>(std::make_shared<torch::optim::SGD>(net_->parameters(), rates()), context);
    optimizer_->bind_models();
    optimizers_->push_back(optimizer_);
    if (job.way.local)
      local_ = std::make_unique<LocalSGD>(*net_, managed(), group_, LocalSgdOptions{.local_sgd_steps = 2});
  }

  std::vector<Tensor> train() {
    for (int number = 0; number < job_.steps * job_.micro; ++number) {
      accumulation_->begin({}, [](double) {});
      if (!local_) managed().set_gradient_sync(accumulation_->communicates());
      try {
        compute(number);
      } catch (const UserError&) {
        optimizer_->zero_grad(true);
        continue;
      }
      if (job_.clips && accumulation_->sync()) clip();
      optimizer_->step(nullptr);
      if (local_ && accumulation_->sync()) local_->step();
      optimizer_->zero_grad(!job_.zeroes);
    }
    if (local_) local_->finish();
    std::vector<Tensor> values;
    for (auto& [name, value] : managed().full_state(false)) values.push_back(value.clone());
    return values;
  }

 private:
  parallel::ManagedModel& managed() { return *model_->managed; }
  double rescale_gradients() {
    const auto scale = optimizer_->loss_scale();
    if (!scale) return 1;
    optimizer_->rescale_gradients(*scale);
    return scale->value();
  }
  void compute(int number) {
    const auto fate = job_.fates[group_.rank()][number];
    if (fate == Fate::no_backward) return;
    if (fate == Fate::throws_forward) throw UserError();
    Tensor loss;
    if (fate == Fate::empty) {
      loss = torch::zeros({}, torch::requires_grad());
    } else {
      const ForwardScope scope(*model_);
      loss = loss_of(*net_, job_, number, group_.rank());
    }
    optimizer_->before_backward();
    const double factor = accumulation_->loss_factor() * rescale_gradients();
    managed().before_backward();
    (loss * factor).backward();
    managed().after_backward();
    optimizer_->after_backward();
  }
  void clip() {
    const auto parameters = net_->parameters();
    optimizer_->join_other_ranks(&parameters);
    optimizer_->unscale();
    const double norm = gradient_norm(*registry_, parameters, 2);
    if (std::isfinite(norm) && norm > kMaxNorm)
      for_each_gradient(*registry_, parameters,
                        [&](const Tensor& gradient) { Tensor(gradient).mul_(kMaxNorm / norm); });
  }

  const Job& job_;
  comm::Communicator group_;
  std::shared_ptr<Net> net_;
  std::shared_ptr<ModelRegistry> registry_;
  std::shared_ptr<Trace> trace_;
  std::shared_ptr<Accumulation> accumulation_;
  std::shared_ptr<PreparedModel> model_;
  std::shared_ptr<PreparedOptimizer> optimizer_;
  std::shared_ptr<PreparedOptimizers> optimizers_ = std::make_shared<PreparedOptimizers>();
  std::unique_ptr<LocalSGD> local_;
};

/// The same in one process: the mean over ranks, of zeros where a rank has no loss.
std::vector<Tensor> alone(const Job& job) {
  at::set_num_threads(1);
  Net net;
  torch::optim::SGD optimizer(net.parameters(), rates());
  for (int step = 0; step < job.steps; ++step) {
    for (int micro = 0; micro < job.micro; ++micro)
      for (int rank = 0; rank < job.world; ++rank) {
        const int number = step * job.micro + micro;
        if (has_loss(job.fates[rank][number]))
          (loss_of(net, job, number, rank) * (1.0 / job.micro / job.world)).backward();
      }
    double squares = 0;
    for (const auto& parameter : net.parameters())
      if (parameter.grad().defined()) squares += parameter.grad().pow(2).sum().item<double>();
    if (std::isfinite(squares)) {
      if (job.clips && std::sqrt(squares) > kMaxNorm)
        for (auto& parameter : net.parameters())
          if (parameter.grad().defined()) parameter.mutable_grad().mul_(kMaxNorm / std::sqrt(squares));
      optimizer.step();
    }
    optimizer.zero_grad(!job.zeroes);
  }
  return net.parameters();
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && torch::equal(a.view(torch::kInt), b.view(torch::kInt));
}

struct Outcome {
  std::vector<std::vector<Tensor>> values;  // of the ranks that ended well
  std::vector<std::string> errors;          // of the others; empty: none
};

Outcome run(const Job& job) {
  Outcome outcome{std::vector<std::vector<Tensor>>(job.world), std::vector<std::string>(job.world)};
  const auto thrown = comm::run_thread_world(
      job.world, {.seed = job.seed + 1, .timeout = std::chrono::seconds(20)}, [&](comm::Communicator group) {
        at::set_num_threads(1);
        const torch::AutoGradMode on(true);
        auto values = Rank(job, group).train();
        group.barrier();  // a rank that left something out meets the others here at the latest
        outcome.values[group.rank()] = std::move(values);
      });
  for (int rank = 0; rank < job.world; ++rank) try {
      if (thrown[rank]) std::rethrow_exception(thrown[rank]);
    } catch (const Error& error) {
      outcome.errors[rank] = error.what();
    } catch (const std::exception& error) {
      outcome.errors[rank] = std::string("no error of Muster's: ") + error.what();
    }
  return outcome;
}

/// Some rank leaves out a step as a whole.
bool leaves_steps_out(const Job& job) { return job.has({Fate::throws_forward, Fate::throws_backward}); }

/// Whether the job must come to its end, whatever was drawn.
bool must_end_well(const Job& job) {
  if (leaves_steps_out(job)) return false;
  const bool missing = job.has({Fate::empty, Fate::no_backward, Fate::unused});
  return !missing || (job.way.takes_unused && !job.way.touches);
}

void expect_equal_or_failed(const Job& job, int& failed) {
  SCOPED_TRACE(job.text());
  const auto outcome = run(job);
  std::string errors;
  for (const auto& error : outcome.errors) errors += (error.empty() ? "ended well" : error) + "\n";
  const auto well = std::count(outcome.errors.begin(), outcome.errors.end(), "");
  if (well < job.world) {
    ++failed;
    EXPECT_EQ(well, 0) << "some ranks failed and others did not:\n" << errors;
    EXPECT_FALSE(must_end_well(job)) << errors;
    EXPECT_EQ(errors.find("no error of Muster's"), std::string::npos) << errors;
    if (!job.way.touches && !job.way.local) {
      const bool names = errors.find("gradient step") != std::string::npos;
      // A rank that left a step out may be through when the others gather what they made of theirs.
      EXPECT_TRUE(names || (leaves_steps_out(job) && errors.find("unit '") != std::string::npos)) << errors;
    }
    return;
  }
  for (int rank = 1; rank < job.world; ++rank)
    for (size_t i = 0; i < outcome.values[0].size(); ++i)
      EXPECT_TRUE(same_bits(outcome.values[rank][i], outcome.values[0][i])) << "parameter " << i << " of rank " << rank;
  if (!job.way.exact || !must_end_well(job)) return;
  const auto expected = alone(job);
  ASSERT_EQ(expected.size(), outcome.values[0].size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(outcome.values[0][i], expected[i], 1e-4, 1e-5))
        << "parameter " << i << ", off by " << (outcome.values[0][i] - expected[i]).abs().max().item<double>();
}

TEST(SeededSteps, RanksEndWithEqualWeightsOrAllFail) {
  const uint64_t first = 1, count = std::getenv("MUSTER_TEST_FULL") ? 10000 : 300;
  int failed = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    expect_equal_or_failed(drawn(seed), failed);
    if (::testing::Test::HasFatalFailure()) return;
  }
  RecordProperty("jobs", static_cast<int>(count));
  RecordProperty("failed", failed);
  EXPECT_GT(failed, 0) << "no job was drawn that fails";
  EXPECT_LT(failed, static_cast<int>(count) / 2) << "most jobs should come to their end";
}

}  // namespace
}  // namespace muster::runtime::seeded
