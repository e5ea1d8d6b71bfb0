#include <algorithm>
#include <map>
#include <memory>

#include "parallel/counted_memory.h"
#include "parallel/gathered_elements.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded {
namespace {

/// Elements that operations of each kind carried on this rank: what it gives to others.
struct Traffic {
  std::mutex mutex;
  std::map<std::string, int64_t> elements, calls;
  void watch(const comm::Communicator& group) {
    group.observe([this, size = group.size()](const comm::OperationEvent& event) {
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

TEST(ShardedCosts, ABackwardOfOtherModelsGathersNothing) {
  for (const auto& options : all_stages())
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net(), idle_net = make_net();
      ShardedModel model(*net, group, options);
      auto idle = std::make_unique<ShardedModel>(*idle_net, group, options);
      const auto words = words_of(0, group.rank());
      const auto trains = [&](ShardedModel& trained, Net& of) {
        const auto loss = loss_of(forward(trained, of, words), words);
        if (idle) idle->before_backward();  // as a runtime, which knows all its models
        if (&trained == &model) model.before_backward();
        loss.backward();
        if (idle) idle->after_backward();
        if (&trained == &model) model.after_backward();
      };
      for (int step = 0; step < 2; ++step) {
        trains(model, net);
        trains(*idle, idle_net);
      }
      const auto gathers = idle->stats().gathers;
      trains(model, net);
      EXPECT_EQ(idle->stats().gathers, gathers);
      if (group.rank() == 0) idle.reset();
      trains(model, net);
    });
}

TEST(ShardedCosts, SendsTheElementsOfTheTable) {
  for (const int world : {2, 3})
    for (const int micro : {1, 3})
      for (const auto& options : all_stages()) {
        SCOPED_TRACE(name_of(options) + ", " + std::to_string(world) + " ranks, " + std::to_string(micro) +
                     " micro-batches");
        on_seeded_ranks(world, [&](comm::Communicator group) {
          auto net = make_net();
          const GatheredElements once(*net, world);
          torch::optim::AdamW adam(net->parameters(), adamw());
          ShardedModel model(*net, group, options);
          optim::FusedStep optimizer(adam, {&model});
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
            model.shards();  // waits for the gathers after the step
            const auto gathered =
                !full ? once.all : micro * (options.reshard_after_forward ? 2 * once.all - once.root : once.all);
            EXPECT_EQ(traffic.of("all_gather"), gathered) << "step " << s;
            EXPECT_EQ(traffic.of("reduce_scatter"), once.all + once.flags);
            EXPECT_EQ(traffic.of("all_reduce") + traffic.of("broadcast"), 0);
          }
          for (int m = 0; m < 2; ++m) {  // every micro-batch reduced
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

TEST(ShardedCosts, ReplicasExchangeOnlyTheSumsOfTheirParts) {
  on_seeded_ranks(4, [&](comm::Communicator group) {
    const auto [shards, replicas] = two_by_two(group);
    auto net = make_net();
    const GatheredElements once(*net, 2);
    ShardedModel model(*net, shards, replicas, {});
    Traffic within, across;
    within.watch(shards);
    across.watch(replicas);
    auto words = words_of(0, group.rank());
    backward(model, loss_of(forward(model, net, words), words));
    EXPECT_EQ(within.of("all_gather"), 2 * once.all - once.root);
    EXPECT_EQ(within.of("reduce_scatter"), once.all + once.flags);
    EXPECT_EQ(across.of("all_reduce"), once.all + once.flags);
    EXPECT_EQ(across.of("all_gather") + across.of("reduce_scatter") + across.of("broadcast"), 0);
    EXPECT_EQ(within.of("all_reduce") + within.of("broadcast"), 0);
  });
}

/// Bytes per rank by the formulas of ZeRO and FSDP for float32 and AdamW.
struct Formula {
  double rest, peak;
  Formula(const ShardedOptions& options, int world, double all, double unit) {
    const double parts = all / world, adam = 2 * parts;
    const bool reshards = options.reshard_after_forward && options.limit_gathered_mb == 0;
    switch (options.stage) {
      case ShardStage::optimizer: rest = peak = all + all + adam; break;
      case ShardStage::gradients: rest = all + parts + adam, peak = rest + 2 * unit; break;
      default: rest = parts + parts + adam, peak = rest + (reshards ? 2 * unit : all) + 2 * unit;
    }
  }
};

TEST(ShardedCosts, HoldsTheBytesOfTheFormulas) {
  for (const int world : {2, 4})
    for (const auto& options : all_stages()) {
      SCOPED_TRACE(name_of(options) + ", " + std::to_string(world) + " ranks");
      on_seeded_ranks(world, [&](comm::Communicator group) {
        CountedMemory memory;
        const double all = 6 * (256 * 256 + 256) * 4, unit = all / 6, activations = 40 * 2 * 256 * 4;
        const Formula wanted(options, world, all, unit);
        Wide net;
        torch::optim::AdamW adam(net->parameters(), adamw());
        ShardedModel model(*net, group, options);
        optim::FusedStep optimizer(adam, {&model});
        const auto batch = [&](bool last) {
          model.set_gradient_sync(last);
          model.enter_forward();
          auto loss = net(torch::ones({2, 256})).sum();
          model.leave_forward();
          backward(model, loss);
        };
        for (int s = 0; s < 3; ++s) {
          memory.forget_peak();
          batch(true);
          optimizer.step();
          optimizer.zero_grad();
          model.shards();  // waits for the gathers after the step
          EXPECT_NEAR(double(memory.live()), wanted.rest, wanted.rest / 100) << "step " << s;
          EXPECT_LE(double(memory.peak()), wanted.peak + 2 * unit + activations) << "step " << s;
          if (s == 0)
            continue;  // the optimizer has its state from its first step on, and nothing is gathered ahead before
          EXPECT_GE(double(memory.peak()), wanted.peak - 2 * unit) << "step " << s;
          const auto stats = model.stats();
          EXPECT_NEAR(double(stats.held_bytes + stats.temporary_bytes) + 2 * all / world, double(memory.live()),
                      wanted.rest / 100);
        }
        batch(false);
        const bool whole_anyway = options.stage == ShardStage::optimizer;
        EXPECT_NEAR(double(memory.live()), wanted.rest + (whole_anyway ? 0 : all), (wanted.rest + all) / 100)
            << "full gradients wait";
        batch(true);
        EXPECT_NEAR(double(memory.live()), wanted.rest, wanted.rest / 100);
      });
    }
}

TEST(ShardedCosts, GathersTheNextUnitAheadAndMoreUnderALimit) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    const int64_t unit = (256 * 256 + 256) * 4;
    struct Watched : torch::autograd::Function<Watched> {
      static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, int64_t model, int64_t log) {
        context->saved_data["model"] = model;
        context->saved_data["log"] = log;
        note(model, log);
        return x.clone();
      }
      static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                     torch::autograd::variable_list gradients) {
        note(context->saved_data["model"].toInt(), context->saved_data["log"].toInt());
        return {gradients[0], Tensor(), Tensor()};
      }
      static void note(int64_t model, int64_t log) {
        reinterpret_cast<std::vector<int64_t>*>(log)->push_back(
            reinterpret_cast<ShardedModel*>(model)->stats().gathered_bytes);
      }
    };
    for (const double limit : {0.0, 3.5 * double(unit) / (1 << 20)}) {
      Wide net;
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
      EXPECT_EQ(seen[0], most * unit);  // the first layer is in use, the others are on their way
      EXPECT_EQ(seen[3], std::min(most, 3) * unit);
      EXPECT_EQ(seen[5], unit);  // nothing comes after the last one
      EXPECT_LE(model.stats().peak_gathered_bytes, (most + 1) * unit);
      EXPECT_EQ(model.stats().gathers, 24);  // no prefetch was in vain
    }
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
