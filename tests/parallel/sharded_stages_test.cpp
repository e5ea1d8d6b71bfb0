#include "muster/base/error.h"
#include "muster/dist/thread_world.h"
#include "muster/parallel/reducer.h"
#include "parallel/shard_layout.h"
#include "parallel/sharded_models.h"
#include "parallel/units.h"

#include <map>

namespace muster::parallel::sharded {
namespace {

/// Every stage, and what changes when memory comes and goes.
std::vector<ShardedOptions> all_stages() {
  return {{.stage = ShardStage::optimizer}, {.stage = ShardStage::gradients}, {}, {.reshard_after_forward = false}, {.limit_gathered_mb = 64}};
}

std::string name_of(const ShardedOptions& options) {
  return "stage " + std::to_string(static_cast<int>(options.stage)) + (options.reshard_after_forward ? "" : ", kept") +
         (options.limit_gathered_mb > 0 ? ", ahead" : "");
}

void stages_like_reference(int world, at::ScalarType dtype, int steps, int micro, bool exact) {
  Reference reference(make_net(true, dtype), world);
  reference.train(steps, micro);
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(world, [&](dist::Communicator group) { expect_rank_like(reference, group, dtype, micro, exact, options); });
  }
}

TEST(ShardedStages, SameBitsAsOneProcessOverTenSteps) { stages_like_reference(2, at::kFloat, 10, 1, true); }
TEST(ShardedStages, SameBitsInFloat64) { stages_like_reference(2, at::kDouble, 10, 1, true); }
TEST(ShardedStages, SameBitsWithMicroBatches) { stages_like_reference(2, at::kFloat, 3, 3, true); }
TEST(ShardedStages, ThreeAndFourRanks) {
  stages_like_reference(3, at::kDouble, 1, 1, false);
  stages_like_reference(4, at::kDouble, 1, 1, false);
}
TEST(ShardedStages, Alone) { stages_like_reference(1, at::kFloat, 2, 1, true); }

/// Tied, frozen, used twice, several dtypes, units within units, and a parameter without use.
struct OddImpl : nn::Module {
  OddImpl() {
    words = register_module("words", nn::Embedding(17, 12));
    block = register_module("block", wrap(nn::Sequential(nn::Linear(12, 30), nn::Tanh(), wrap(nn::Linear(30, 12)))));
    frozen = register_module("frozen", wrap(nn::Sequential(nn::Linear(12, 12), nn::LayerNorm(nn::LayerNormOptions({12})))));
    frozen[0]->as<nn::Linear>()->weight.requires_grad_(false);
    still = register_module("still", wrap(nn::Linear(12, 12)));
    for (auto& parameter : still->parameters()) parameter.requires_grad_(false);
    norm = register_module("norm", nn::BatchNorm1d(12));
    wide = register_module("wide", wrap(nn::Linear(12, 5)));
    wide->to(at::kDouble);
    spare = register_parameter("spare", torch::ones({3}));
  }
  Tensor forward(const Tensor& ids) {
    auto x = words(ids).mean(1);
    x = block->forward(x) + block->forward(torch::tanh(x));   // used twice
    x = still(norm(frozen->forward(x)));
    return nn::functional::linear(x, words->weight).mean(1, true).to(at::kDouble) + wide(x.to(at::kDouble));   // tied
  }
  nn::Embedding words{nullptr};
  nn::Sequential block{nullptr}, frozen{nullptr};
  nn::Linear still{nullptr}, wide{nullptr};
  nn::BatchNorm1d norm{nullptr};
  Tensor spare;
};
TORCH_MODULE(Odd);

Odd make_odd() {
  static std::mutex mutex;
  std::scoped_lock lock(mutex);
  torch::manual_seed(3);
  return Odd();
}

Tensor odd_loss(ManagedModel& model, Odd& net, const Tensor& ids) {
  model.enter_forward();
  auto loss = net(ids).pow(2).mean();
  model.leave_forward();
  return loss;
}

Tensor ids_of(int step, int rank) { return (torch::arange(8 * 3).view({8, 3}) * (step + 2) + rank * 5) % 17; }

TEST(ShardedStages, TiedFrozenNestedAndReusedModulesLikeTheReducer) {
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(2, [&](dist::Communicator group) {
      auto sharded_net = make_odd(), replicated_net = make_odd();
      std::vector<Tensor> mine, theirs;
      for (auto& parameter : sharded_net->parameters()) if (parameter.requires_grad()) mine.push_back(parameter);
      for (auto& parameter : replicated_net->parameters()) if (parameter.requires_grad()) theirs.push_back(parameter);
      torch::optim::AdamW sharded_adam(mine, adamw()), replicated_adam(theirs, adamw());
      ShardedModel sharded(*sharded_net, group, options);
      Reducer replicated(*replicated_net, group, {.find_unused_parameters = true});
      optim::FusedOptimizer sharded_optimizer(sharded_adam, {&sharded}), replicated_optimizer(replicated_adam, {&replicated});
      for (int s = 0; s < 4; ++s) {
        const auto step = [&](ManagedModel& model, Odd& net, optim::FusedOptimizer& optimizer) {
          auto loss = odd_loss(model, net, ids_of(s, group.rank()));
          if (s == 2) loss = loss + odd_loss(model, net, ids_of(s + 9, group.rank()));   // two forwards before one backward
          backward(model, loss);
          optimizer.step();
          optimizer.zero_grad();
          return loss.item<double>();
        };
        EXPECT_EQ(step(sharded, sharded_net, sharded_optimizer), step(replicated, replicated_net, replicated_optimizer)) << s;
      }
      auto wanted = replicated_net->named_parameters();
      for (auto& [name, tensor] : sharded.full_state(false))
        if (wanted.contains(name)) {
          EXPECT_TRUE(torch::equal(tensor, wanted[name])) << name;
        }
    });
  }
}

/// Elements that operations of each kind carried on this rank: what it gives to others.
struct Traffic {
  std::mutex mutex;
  std::map<std::string, int64_t> elements, calls;
  void watch(const dist::Communicator& group) {
    group.observe([this, size = group.size()](const dist::OperationEvent& event) {
      std::scoped_lock lock(mutex);
      const auto count = event.bytes / static_cast<int64_t>(c10::elementSize(event.dtype));
      const auto name = std::string(event.operation);
      elements[name] += name == "reduce_scatter" ? count / size * (size - 1) : count * (size - 1);
      ++calls[name];
    });
  }
  void clear() {
    std::scoped_lock lock(mutex);
    elements.clear();
    calls.clear();
  }
  int64_t of(const std::string& name) {
    std::scoped_lock lock(mutex);
    return elements[name];
  }
};

/// The elements of one gather of every unit, on one rank.
struct Elements {
  int64_t all = 0, root = 0, flags = 0;
  Elements(const torch::nn::Module& module, int world) {
    for (const auto& plan : plan_units(module, {})) {
      std::vector<int64_t> numels;
      for (const auto& parameter : plan.parameters) numels.push_back(parameter.tensor.numel());
      const auto chunk = ShardLayout(numels, world).chunk();
      all += chunk * (world - 1);
      if (plan.root) root += chunk * (world - 1);
      flags += static_cast<int64_t>(numels.size()) * (world - 1);
    }
  }
};

TEST(ShardedStages, SendsTheElementsOfTheTable) {
  for (const int world : {2, 3})
    for (const int micro : {1, 3})
      for (const auto& options : all_stages()) {
        SCOPED_TRACE(name_of(options) + ", " + std::to_string(world) + " ranks, " + std::to_string(micro) + " micro-batches");
        on_seeded_ranks(world, [&](dist::Communicator group) {
          auto net = make_net();
          const Elements once(*net, world);
          torch::optim::AdamW adam(net->parameters(), adamw());
          ShardedModel model(*net, group, options);
          optim::FusedOptimizer optimizer(adam, {&model});
          Traffic traffic;
          traffic.watch(group);
          const bool full = options.stage == ShardStage::full;
          for (int s = 0; s < 3; ++s) {
            traffic.clear();
            for (int m = 0; m < micro; ++m) {
              model.set_gradient_sync(m + 1 == micro);
              auto words = words_of(s, group.rank());
              backward(model, loss_of(forward(model, net, words), words));
            }
            optimizer.step();
            optimizer.zero_grad();
            model.parts();   // waits for the gathers after the step
            const auto gathered = !full ? once.all : micro * (options.reshard_after_forward ? 2 * once.all - once.root : once.all);
            EXPECT_EQ(traffic.of("all_gather"), gathered) << "step " << s;
            EXPECT_EQ(traffic.of("reduce_scatter"), once.all + once.flags);
            EXPECT_EQ(traffic.of("all_reduce") + traffic.of("broadcast"), 0);
          }
          for (int m = 0; m < 2; ++m) {   // every micro-batch reduced
            model.set_gradient_sync(true);
            auto words = words_of(m, group.rank());
            backward(model, loss_of(forward(model, net, words), words));
          }
          EXPECT_EQ(traffic.of("reduce_scatter"), 3 * (once.all + once.flags));
        });
      }
}

struct WideImpl : nn::Module {
  WideImpl() {
    for (int i = 0; i < 6; ++i) layers->push_back(nn::Linear(256, 256));
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < layers->size(); ++i) x = torch::relu(layers[i]->as<nn::Linear>()->forward(x));
    return x;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Wide);

TEST(ShardedStages, HoldsTheBytesOfTheFormulas) {
  for (const int world : {2, 4})
    for (const auto& options : all_stages()) {
      SCOPED_TRACE(name_of(options) + ", " + std::to_string(world) + " ranks");
      on_seeded_ranks(world, [&](dist::Communicator group) {
        Wide net;
        const double all = 6 * (256 * 256 + 256) * 4, unit = all / 6, part = all / world;
        torch::optim::AdamW adam(net->parameters(), adamw());
        ShardedModel model(*net, group, options);
        optim::FusedOptimizer optimizer(adam, {&model});
        for (int s = 0; s < 2; ++s) {
          model.enter_forward();
          auto loss = net(torch::ones({2, 256})).sum();
          model.leave_forward();
          backward(model, loss);
          optimizer.step();
          optimizer.zero_grad();
        }
        const auto figures = model.figures();
        const double rest = options.stage == ShardStage::optimizer ? all + all : options.stage == ShardStage::gradients ? all + part : part + part;
        EXPECT_NEAR(double(figures.held_bytes + figures.lent_bytes), rest, rest / 100);
        const double live = options.stage != ShardStage::full ? 0 : options.reshard_after_forward && options.limit_gathered_mb == 0 ? 2 * unit : all;
        const double gradients = options.stage == ShardStage::optimizer ? 0 : 2 * unit;
        EXPECT_LE(double(figures.peak_lent_bytes), live + gradients + 2 * unit);
        EXPECT_GE(double(figures.peak_lent_bytes), live);
      });
    }
}

TEST(ShardedStages, GathersTheNextUnitAheadAndMoreUnderALimit) {
  on_seeded_ranks(2, [&](dist::Communicator group) {
    Wide net;
    const int64_t unit = (256 * 256 + 256) * 4;
    struct Watched : torch::autograd::Function<Watched> {
      static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, int64_t model, int64_t log) {
        context->saved_data["model"] = model;
        context->saved_data["log"] = log;
        note(model, log);
        return x.clone();
      }
      static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
        note(context->saved_data["model"].toInt(), context->saved_data["log"].toInt());
        return {gradients[0], Tensor(), Tensor()};
      }
      static void note(int64_t model, int64_t log) {
        reinterpret_cast<std::vector<int64_t>*>(log)->push_back(reinterpret_cast<ShardedModel*>(model)->figures().gathered_bytes);
      }
    };
    for (const double limit : {0.0, 3.5 * double(unit) / (1 << 20)}) {
      ShardedModel model(*net, group, {.limit_gathered_mb = limit});
      std::vector<int64_t> seen;
      const auto log = reinterpret_cast<int64_t>(&seen), self = reinterpret_cast<int64_t>(&model);
      for (int s = 0; s < 2; ++s) {
        seen.clear();
        model.enter_forward();
        auto x = torch::ones({2, 256}, torch::requires_grad());
        for (size_t i = 0; i < 6; ++i) x = Watched::apply(net->layers[i]->as<nn::Linear>()->forward(x), self, log);
        model.leave_forward();
        backward(model, x.sum());
      }
      const auto most = limit > 0 ? 3 : 2;
      EXPECT_EQ(seen[0], most * unit);   // the first layer is in use, the others are on their way
      EXPECT_EQ(seen[3], std::min(most, 3) * unit);
      EXPECT_EQ(seen[5], unit);          // nothing comes after the last one
      EXPECT_LE(model.figures().peak_gathered_bytes, (most + 1) * unit);
      EXPECT_EQ(model.figures().gathers, 24);   // no hint was in vain
      break;
    }
  });
}

TEST(ShardedStages, StaysUsableAfterExceptionsInForwardAndBackward) {
  struct Thrower : torch::autograd::Function<Thrower> {
    static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
      throw std::runtime_error("user's backward");
    }
  };
  Reference reference(make_net(), 2);
  reference.train(3);
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(2, [&](dist::Communicator group) {
      auto net = make_net();
      ShardedModel model(*net, group, options);
      torch::optim::AdamW adam(net->parameters(), adamw());
      optim::FusedOptimizer optimizer(adam, {&model});
      for (int s = 0; s < 3; ++s) {
        auto words = words_of(s, group.rank());
        EXPECT_THROW(
            {
              model.enter_forward();
              struct Leave {
                ShardedModel& model;
                ~Leave() { model.leave_forward(); }
              } leave{model};
              auto hidden = net->encoder->layers[0]->as<nn::TransformerEncoderLayer>()->forward(net->embed(words));
              net->head(hidden.narrow(2, 0, 3));   // shapes do not fit
            },
            c10::Error);
        EXPECT_EQ(model.figures().lent_bytes, 0);
        model.enter_forward();
        auto hidden = Thrower::apply(net->embed(words));
        auto bad = loss_of(net->head(net->encoder(hidden)), words);
        model.leave_forward();
        EXPECT_THROW(backward(model, bad), std::runtime_error);
        optimizer.zero_grad();
        backward(model, loss_of(forward(model, net, words), words));
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_state(model, reference.net, true);
    });
  }
}

/// What each rank threw, by its class, when ranks call layers of a list as they please.
std::vector<std::string> fates(const ShardedOptions& options, const std::function<std::vector<size_t>(int step, int rank)>& layers) {
  std::vector<std::string> fates(2);
  const auto errors = dist::run_thread_world(2, {.seed = 3, .timeout_seconds = 20}, [&](dist::Communicator group) {
    nn::ModuleList list;
    for (int i = 0; i < 4; ++i) list->push_back(nn::Linear(8, 8));
    ShardedModel model(*list, group, options);
    for (int s = 0; s < 3; ++s) {
      model.enter_forward();
      auto x = torch::ones({1, 8});
      for (const auto i : layers(s, group.rank())) x = list[i]->as<nn::Linear>()->forward(x);
      model.leave_forward();
      backward(model, x.sum());
    }
  });
  for (size_t r = 0; r < errors.size(); ++r) {
    try {
      if (errors[r]) std::rethrow_exception(errors[r]);
      fates[r] = "ended well";
    } catch (const CommError& error) {
      fates[r] = error.id();
      EXPECT_NE(std::string(error.what()).find("unit '"), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      fates[r] = error.what();
    }
  }
  return fates;
}

TEST(ShardedStages, RanksThatTakeDifferentBranchesGetACommErrorOnAll) {
  const std::vector<std::string> both{"MU050", "MU050"}, well{"ended well", "ended well"};
  using Layers = std::vector<size_t>;
  for (const int when : {0, 1, 2}) {   // before there is an order to gather ahead by, and after
    EXPECT_EQ(fates({}, [&](int s, int rank) { return s == when && rank == 1 ? Layers{1, 0, 2, 3} : Layers{0, 1, 2, 3}; }), both) << when;
    EXPECT_EQ(fates({}, [&](int s, int rank) { return s == when && rank == 1 ? Layers{0, 2, 3} : Layers{0, 1, 2, 3}; }), both) << when;
    EXPECT_EQ(fates({.stage = ShardStage::gradients}, [&](int s, int rank) { return s == when && rank == 1 ? Layers{1, 0, 2, 3} : Layers{0, 1, 2, 3}; }), both) << when;
  }
  EXPECT_EQ(fates({}, [&](int s, int) { return s == 1 ? Layers{2, 0, 3, 1, 2} : Layers{0, 1, 2, 3}; }), well) << "other orders are fine if all take them";
  EXPECT_EQ(fates({.stage = ShardStage::optimizer}, [&](int, int rank) { return rank == 1 ? Layers{0, 2} : Layers{3, 1, 2, 0}; }), well)
      << "where nothing is gathered and reductions have an order of their own";
}

TEST(ShardedStages, HybridShardingLikeOneProcess) {
  Reference reference(make_net(true, at::kDouble), 4);
  reference.train(2);
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(4, [&](dist::Communicator group) {
      dist::Communicator shards, replicas;
      for (int k = 0; k < 2; ++k) {
        auto row = group.subgroup({2 * k, 2 * k + 1}), column = group.subgroup({k, k + 2});
        if (group.rank() / 2 == k) shards = row;
        if (group.rank() % 2 == k) replicas = column;
      }
      auto net = make_net(true, at::kDouble, 11 + group.rank());   // the values of rank 0 win
      torch::optim::AdamW adam(net->parameters(), adamw());
      ShardedModel model(*net, shards, replicas, options);
      EXPECT_NE(model.describe().find("4 ranks (2 replicas of 2 shards)"), std::string::npos) << model.describe();
      optim::FusedOptimizer optimizer(adam, {&model});
      for (int s = 0; s < 2; ++s) {
        auto words = words_of(s, group.rank());
        backward(model, loss_of(forward(model, net, words), words));
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_state(model, reference.net, false);
      for (auto& part : model.parts()) {
        auto low = part.values.clone(), high = part.values.clone();
        replicas.all_reduce(low, dist::ReduceOp::min);
        replicas.all_reduce(high, dist::ReduceOp::max);
        EXPECT_TRUE(torch::equal(low, high)) << part.name;
      }
    });
  }
}

TEST(ShardedStages, UsesLowPrecisionAndUpdatesInTheDtypeBuilt) {
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full}) {
    SCOPED_TRACE(static_cast<int>(stage));
    on_seeded_ranks(2, [&](dist::Communicator group) {
      auto net = make_net(), plain = make_net();
      torch::optim::AdamW adam(net->parameters(), adamw());
      ShardedModel model(*net, group, {.param_dtype = "bf16", .stage = stage});
      EXPECT_EQ(net->head->weight.scalar_type(), at::kBFloat16);
      optim::FusedOptimizer optimizer(adam, {&model});
      auto masters = plain->parameters();
      for (int s = 0; s < 2; ++s) {
        // The same by hand: low copies of full values, gradients of both ranks' words, summed in float32.
        std::vector<Tensor> sums;
        double wanted = 0;
        for (int rank = 0; rank < 2; ++rank) {
          auto low = make_net();
          low->to(at::kBFloat16);
          auto parameters = low->parameters();
          for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(masters[i].detach().to(at::kBFloat16));
          auto loss = loss_of(low(words_of(s, rank)).to(at::kFloat), words_of(s, rank));
          if (rank == group.rank()) wanted = loss.item<double>();
          loss.backward();
          for (size_t i = 0; i < parameters.size(); ++i) {
            auto gradient = parameters[i].grad().to(at::kFloat) / 2;
            rank == 0 ? sums.push_back(gradient) : void(sums[i] += gradient);
          }
        }
        auto words = words_of(s, group.rank());
        auto loss = loss_of(forward(model, net, words).to(at::kFloat), words);
        EXPECT_EQ(loss.item<double>(), wanted);
        backward(model, loss);
        for (size_t i = 0; i < sums.size(); ++i)
          EXPECT_EQ(model.gradient_power_sum({net->parameters()[i]}, INFINITY).item<float>(), sums[i].abs().max().item<float>());
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_TRUE(optimizer.fused());
        auto state = model.full_state(false);
        at::NoGradGuard no_grad;
        for (size_t i = 0; i < masters.size(); ++i) {
          EXPECT_EQ(state[i].second.scalar_type(), at::kFloat);
          masters[i].copy_(state[i].second);
        }
        EXPECT_FALSE(torch::equal(masters[0], masters[0].to(at::kBFloat16).to(at::kFloat)));
      }
      for (const auto& part : model.parts()) EXPECT_EQ(part.values.scalar_type(), at::kFloat);
    });
  }
}

TEST(ShardedStages, AForwardOutsideItsScopeIsRefusedWhereParametersStay) {   // MU151
  on_seeded_ranks(2, [&](dist::Communicator group) {
    auto net = make_net();
    ShardedModel model(*net, group, {.stage = ShardStage::gradients});
    auto words = words_of(0, group.rank());
    try {
      backward(model, loss_of(net(words), words));
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.id(), "MU151");
    }
    EXPECT_NO_THROW(backward(model, loss_of(forward(model, net, words), words)));
  });
}

TEST(ShardedStages, ResidentParametersCanBeReadAnytimeButNotWritten) {   // MU156
  on_seeded_ranks(2, [&](dist::Communicator group) {
    auto net = make_net(true), plain = make_net(true);
    net->unused->weight.requires_grad_(false);
    ShardedModel model(*net, group, {.stage = ShardStage::optimizer});
    EXPECT_TRUE(torch::equal(net->head->weight.detach().clone(), plain->head->weight));
    EXPECT_THROW(nn::init::zeros_(net->head->weight), UsageError);
    net->unused->weight.requires_grad_(true);
    EXPECT_THROW(model.enter_forward(), UsageError);
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
