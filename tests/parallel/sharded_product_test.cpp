// Sharded training equals the split reference, over the product of jobs, worlds, stages, units and ways to step.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/optim/detail/norm.h"
#include "optim/fused.h"
#include "parallel/sharded_jobs.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::product {
namespace {

using jobs::Job;
using torch::Tensor;

constexpr double kMaxNorm = 0.05;

/// How parameters are cut and kept.
struct Layout {
  std::string name;
  ShardedOptions options;
};

struct Setting {
  const Job* job = nullptr;
  Layout layout;
  int world = 2;
  std::string optimizer = "AdamW";
  at::ScalarType dtype = at::kFloat;
  int micro = 1;           ///< backwards in a step
  bool sync_each = false;  ///< every one of them communicates
  double clip = 0;         ///< the norm's order; 0: no clipping
  bool groups = false;     ///< biases and vectors in a group of their own
  int steps = 10;
  bool shared_memory = false;

  std::string text() const {
    std::ostringstream out;
    out << job->name << ", " << layout.name << ", " << world << " ranks, " << optimizer << ", " << dtype << ", "
        << micro << (sync_each ? " communicated" : "") << " micro-batches, clip " << clip
        << (groups ? ", two groups" : "") << ", " << steps << " steps" << (shared_memory ? ", shared memory" : "");
    return out.str();
  }
};

using Parameters = std::vector<Tensor>;

/// Vectors learn at half the rate and do not decay, where `groups` asks for it.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Setting& setting, const Parameters& parameters,
                                                        const std::vector<bool>& vectors) {
  namespace optim = torch::optim;
  const auto with = [&](auto options, auto make) -> std::unique_ptr<optim::Optimizer> {
    if (!setting.groups)
      return make(std::vector<optim::OptimizerParamGroup>{optim::OptimizerParamGroup(parameters)}, options);
    std::vector<Tensor> rest, small;
    for (size_t i = 0; i < parameters.size(); ++i) (vectors[i] ? small : rest).push_back(parameters[i]);
    auto slower = options;
    slower.lr(options.lr() / 2).weight_decay(0);
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(rest, std::make_unique<decltype(options)>(options));
    groups.emplace_back(small, std::make_unique<decltype(options)>(slower));
    return make(std::move(groups), options);
  };
  const auto build = [&]<class Optimizer>(auto options) {
    return with(options, [](std::vector<optim::OptimizerParamGroup> groups, auto defaults) {
      return std::make_unique<Optimizer>(std::move(groups), defaults);
    });
  };
  if (setting.optimizer == "SGD")
    return build.operator()<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  if (setting.optimizer == "Adam") return build.operator()<optim::Adam>(optim::AdamOptions(3e-3).weight_decay(0.01));
  if (setting.optimizer == "RMSprop")
    return build.operator()<optim::RMSprop>(optim::RMSpropOptions(2e-3).momentum(0.8).weight_decay(0.01));
  if (setting.optimizer == "Adagrad")
    return build.operator()<optim::Adagrad>(optim::AdagradOptions(0.02).weight_decay(0.01));
  return build.operator()<optim::AdamW>(optim::AdamWOptions(3e-3).weight_decay(0.1));
}

/// Tied ones once.
Parameters distinct_parameters(const torch::nn::Module& module) {
  Parameters distinct;
  for (const auto& parameter : module.parameters())
    if (std::none_of(distinct.begin(), distinct.end(), [&](const Tensor& other) { return other.is_same(parameter); }))
      distinct.push_back(parameter);
  return distinct;
}

std::vector<bool> which_are_vectors(const Parameters& parameters) {
  std::vector<bool> vectors;
  for (const auto& parameter : parameters) vectors.push_back(parameter.dim() < 2);
  return vectors;
}

/// The elements in the order in which they lie in memory, padded with zeros to whole vectors.
Tensor padded(const Tensor& tensor, const Tensor& like) {
  auto flat = torch::zeros({(like.numel() + 63) / 64 * 64}, like.options().requires_grad(false));
  flat.narrow(0, 0, like.numel()).as_strided(like.sizes(), like.strides()).copy_(tensor);
  return flat;
}

/// One process computes each rank's part with that rank's own buffers, which become rank 0's when gradients are summed,
/// in rank order, and steps copies of the parameters that are whole vectors. Gives the parameters after each step.
class Split {
 public:
  explicit Split(const Setting& setting) : setting_(setting) {
    at::set_num_threads(1);
    for (int rank = 0; rank < setting.world; ++rank) ranks_.push_back(setting.job->make(setting.dtype));
    const auto parameters = distinct_parameters(*ranks_[0]);
    for (const auto& parameter : parameters)
      copies_.push_back(padded(parameter.detach(), parameter).set_requires_grad(parameter.requires_grad()));
    optimizer_ = make_optimizer(setting, copies_, which_are_vectors(parameters));
    fused_ = std::make_unique<optim::FusedStep>(*optimizer_);
  }

  /// Losses by micro-batch and rank.
  std::vector<std::vector<double>> step(int number) {
    std::vector<std::vector<double>> losses(static_cast<size_t>(setting_.micro), std::vector<double>(ranks_.size()));
    std::vector<Tensor> sums(copies_.size());
    for (int m = 0; m < setting_.micro; ++m) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        auto loss = setting_.job->loss(*ranks_[rank], number * setting_.micro + m, static_cast<int>(rank));
        losses[static_cast<size_t>(m)][rank] = loss.item<double>();
        loss.backward();
      }
      if (setting_.sync_each || m + 1 == setting_.micro) {
        add_in_rank_order(sums);
        broadcast_buffers();
      }
    }
    at::NoGradGuard no_grad;
    if (setting_.clip > 0) clip(sums);
    for (size_t i = 0; i < copies_.size(); ++i) copies_[i].mutable_grad() = sums[i];
    fused_->step();
    for (const auto& rank : ranks_) copy_into(distinct_parameters(*rank));
    return losses;
  }
  const torch::nn::Module& module() const { return *ranks_[0]; }

 private:
  void broadcast_buffers() {
    const auto first = ranks_[0]->buffers();
    for (const auto& rank : ranks_)
      for (size_t i = 0; i < first.size(); ++i) rank->buffers()[i].set_data(first[i].clone());
  }
  void add_in_rank_order(std::vector<Tensor>& sums) {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < sums.size(); ++i) {
      Tensor sum;
      for (const auto& rank : ranks_) {
        auto parameter = distinct_parameters(*rank)[i];
        const auto gradient = std::exchange(parameter.mutable_grad(), Tensor());
        if (!gradient.defined()) continue;
        const auto part = padded(gradient, parameter) / setting_.world;
        sum = sum.defined() ? sum + part : part;
      }
      if (sum.defined()) sums[i] = sums[i].defined() ? sums[i] + sum : sum;
    }
  }
  void clip(std::vector<Tensor>& sums) {
    const auto norm = optim::norm_from_power_sum(optim::power_sum(sums, setting_.clip), setting_.clip);
    const auto factor = optim::clip_coefficient(norm, kMaxNorm);
    for (auto& sum : sums)
      if (sum.defined() && factor < 1) sum.mul_(factor);
  }
  void copy_into(std::vector<Tensor> parameters) {
    for (size_t i = 0; i < copies_.size(); ++i)
      parameters[i].copy_(
          copies_[i].narrow(0, 0, parameters[i].numel()).as_strided(parameters[i].sizes(), parameters[i].strides()));
  }

  const Setting& setting_;
  std::vector<std::shared_ptr<torch::nn::Module>> ranks_;
  Parameters copies_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<optim::FusedStep> fused_;
};

Tensor micro_batch(const Setting& setting, ShardedModel& model, torch::nn::Module& module, int number, int rank) {
  Tensor loss;
  {
    const sharded::ForwardScope scope(model);
    loss = setting.job->loss(module, number, rank);
  }
  sharded::backward(model, loss);
  return loss;
}

void clip(ShardedModel& model, const Parameters& parameters, double order) {
  const auto norm = optim::norm_from_power_sum(model.gradient_power_sum(parameters, order), order);
  const auto factor = optim::clip_coefficient(norm, kMaxNorm);
  if (factor < 1) model.for_each_gradient(parameters, [&](const Tensor& gradient) { Tensor(gradient).mul_(factor); });
}

/// Sums over ranks have one order at two ranks; a norm has the same bits however gradients are cut.
double tolerance(const Setting& setting) { return setting.world <= 2 ? 0 : 1e-12; }

void expect_close(const Tensor& mine, const Tensor& wanted, double tolerance, const std::string& what) {
  if (tolerance == 0)
    EXPECT_TRUE(torch::equal(mine, wanted)) << what << ", " << (mine - wanted).abs().max().item<double>();
  else EXPECT_LT((mine - wanted).abs().max().item<double>(), tolerance) << what;
}

void expect_equal_to_split(const Setting& setting) {
  SCOPED_TRACE(setting.text());
  Split split(setting);
  std::vector<std::vector<std::vector<double>>> losses;
  for (int step = 0; step < setting.steps; ++step) losses.push_back(split.step(step));
  const auto wanted = split.module().named_parameters(), buffers = split.module().named_buffers();
  const auto body = [&](comm::Communicator group) {
    const auto module = setting.job->make(setting.dtype);
    const auto parameters = module->parameters();  // as users hand them over: tied ones twice
    const auto optimizer = make_optimizer(setting, parameters, which_are_vectors(parameters));
    ShardedModel model(*module, group, setting.layout.options);
    optim::FusedStep fused(*optimizer, {&model});
    for (int step = 0; step < setting.steps; ++step) {
      for (int m = 0; m < setting.micro; ++m) {
        model.set_gradient_sync(setting.sync_each || m + 1 == setting.micro);
        const auto loss = micro_batch(setting, model, *module, step * setting.micro + m, group.rank());
        const auto expected =
            losses[static_cast<size_t>(step)][static_cast<size_t>(m)][static_cast<size_t>(group.rank())];
        EXPECT_NEAR(loss.item<double>(), expected, tolerance(setting)) << setting.text() << ", step " << step;
      }
      if (setting.clip > 0) clip(model, parameters, setting.clip);
      fused.step();
      fused.zero_grad();
    }
    size_t compared = 0;
    for (const auto& [name, value] : model.full_state(/*main_only=*/false))
      if (const auto* buffer = buffers.find(name)) {
        expect_close(value.to(at::kDouble), buffer->to(at::kDouble), tolerance(setting), setting.text() + ": " + name);
      } else if (const auto* parameter = wanted.find(name)) {
        expect_close(value, *parameter, tolerance(setting), setting.text() + ": " + name);
        ++compared;
      }
    EXPECT_EQ(compared, wanted.size());
  };
  sharded::on_seeded_ranks(setting.world, body, setting.shared_memory);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  const std::pair<const char*, ShardedOptions> wrappings[] = {
      {"one unit", {.auto_wrap = false}}, {"units of blocks", {}}, {"a unit per layer", {.unit_min_elements = 1}}};
  for (const auto& [wrapping, units] : wrappings)
    for (const auto& [name, stage, reshard] : {std::tuple{"optimizer", ShardStage::optimizer, true},
                                               {"gradients", ShardStage::gradients, true},
                                               {"full", ShardStage::full, true},
                                               {"full without reshard", ShardStage::full, false}}) {
      auto options = units;
      options.reshard_after_forward = reshard;
      options.stage = stage;
      all.push_back({std::string(name) + ", " + wrapping, options});
    }
  return all;
}

/// The whole product in no order that repeats; one step of float64 for more than two ranks.
std::vector<Setting> whole_product(const std::vector<Job>& all_jobs) {
  std::vector<Setting> all;
  for (const auto& job : all_jobs)
    for (const auto& layout : layouts())
      for (const int world : {1, 2, 3, 4})
        for (const char* optimizer : {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"})
          for (const auto dtype : {at::kFloat, at::kDouble})
            for (const auto& [micro, sync_each] : {std::pair{1, true}, {3, false}, {2, true}})
              for (const double clip : {0.0, 2.0, double(INFINITY)})
                for (const bool groups : {false, true})
                  if ((world <= 2 || dtype == at::kDouble) && (dtype == at::kFloat || !job.only_float))
                    all.push_back(
                        {&job, layout, world, optimizer, dtype, micro, sync_each, clip, groups, world <= 2 ? 10 : 1});
  return all;
}

/// All of it in the full run, a sample by a fixed seed otherwise.
std::vector<Setting> sampled(std::vector<Setting> settings, size_t count) {
  std::shuffle(settings.begin(), settings.end(), std::mt19937(20));
  if (!std::getenv("MUSTER_TEST_FULL")) settings.resize(std::min(count, settings.size()));
  return settings;
}

TEST(ShardedProduct, EqualsTheSplitReference) {
  const auto networks = jobs::networks();
  auto settings = sampled(whole_product(networks), 150);
  for (size_t s = 0; s < settings.size(); ++s) {
    settings[s].shared_memory = s % 2 == 1;
    expect_equal_to_split(settings[s]);
    if (s % 1000 == 999) std::cerr << s + 1 << " of " << settings.size() << " settings\n";
  }
  RecordProperty("settings", static_cast<int>(settings.size()));
}

TEST(ShardedProduct, EveryModuleIsShardedUnchanged) {
  for (const auto& job : jobs::single_modules()) {
    const auto all = layouts();
    for (size_t l = 0; l < all.size(); l += 2) expect_equal_to_split({.job = &job, .layout = all[l], .steps = 3});
  }
}

/// The check itself: another rate, another order of parts or a lost gradient must not pass.
TEST(ShardedProduct, ASmallDifferenceIsSeen) {
  const auto networks = jobs::networks();
  Setting setting{.job = &networks[0], .layout = layouts()[0], .steps = 2};
  Split one(setting), other(setting);
  for (int step = 0; step < 2; ++step) one.step(step), other.step(step + 1);
  EXPECT_FALSE(torch::equal(one.module().parameters()[0], other.module().parameters()[0]));
  Split again(setting);
  for (int step = 0; step < 2; ++step) again.step(step);
  EXPECT_TRUE(torch::equal(one.module().parameters()[0], again.module().parameters()[0]));
}

}  // namespace
}  // namespace muster::parallel::product
