#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/fabric.h"
#include "muster/parallel/sharded_options.h"
#include "muster/runtime/metrics.h"
#include "muster/testing/thrown.h"
#include "runtime/device_course.h"

namespace muster {
namespace {

using testing::as_device_ranks;
using testing::Course;
using testing::CourseNet;
using testing::expect_bits_of_cpu;
using testing::simulated_backend;

const Strategy kSmallUnits = FSDP{.unit_min_elements = 60};

TEST(DeviceBackendOption, TrainsAsTheCpuDoes) {
  as_device_ranks(2, [] {
    expect_bits_of_cpu({.backend = true, .clips = true}, 4);
    expect_bits_of_cpu({.backend = true, .strategy = "zero1", .clips = true}, 4);
    expect_bits_of_cpu({.backend = true, .strategy = kSmallUnits, .clips = true}, 4);
  });
}

TEST(DeviceBackendOption, OfFabricTrainsAsTheCpuDoes) {
  as_device_ranks(2, [] {
    const auto train = [](bool on_cpu) {
      torch::manual_seed(3);
      Fabric fabric({.accelerator = on_cpu ? "cpu" : "auto",
                     .device_backend = simulated_backend(),
                     .precision = "32-true",
                     .strategy = "ddp"});
      EXPECT_EQ(fabric.device().is_cpu(), on_cpu);
      CourseNet net(19);
      auto [model, sgd] = fabric.setup(net, torch::optim::SGD(net->parameters(), 0.1));
      for (int step = 0; step < 3; ++step) {
        fabric.backward(model(testing::inputs(step, fabric.global_rank()).to(fabric.device())).pow(2).mean());
        sgd.step();
        sgd.zero_grad();
      }
      std::vector<at::Tensor> weights;
      for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().cpu());
      return weights;
    };
    const auto expected = train(true);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      sim::set_seed(seed);
      const auto trained = train(false);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(testing::difference_in_bits(trained[i], expected[i]), "") << seed;
    }
  });
}

/// Operations that were staged.
std::set<std::string> staged_operations(Accelerator& accelerator, const Course& course) {
  auto names = std::make_shared<std::set<std::string>>();
  accelerator.group().observe([names](const comm::OperationEvent& event) {
    if (event.staged) names->insert(std::string(event.operation));
  });
  CourseNet net(course.width);
  testing::train_with(accelerator, course, net, torch::optim::SGD(net->parameters(), 0.1));
  return *names;
}

TEST(DeviceBackendOption, SaysWhatGoesOverItAndWhatIsStaged) {
  as_device_ranks(2, [] {
    sim::set_seed(2);
    Accelerator by_backend({.device_backend = simulated_backend(), .strategy = "ddp"});
    const auto plan = by_backend.plan(), rank = std::to_string(by_backend.process_index());
    EXPECT_NE(plan.find("tensors on sim:" + rank + ": over the backend sim of the program"), std::string::npos) << plan;
    EXPECT_FALSE(staged_operations(by_backend, {}).contains("all_reduce"));

    Accelerator without({.strategy = "ddp"});
    EXPECT_NE(without.plan().find("tensors on sim:" + rank + ": through pinned host memory"), std::string::npos)
        << without.plan();
    EXPECT_TRUE(staged_operations(without, {}).contains("all_reduce"));

    // It is not for the CPU, and stands aside there.
    Accelerator on_cpu({.cpu = true, .device_backend = simulated_backend(), .strategy = "ddp"});
    EXPECT_EQ(on_cpu.plan().find("tensors on"), std::string::npos);
  });
}

/// What the object of tests/runtime/objects finds in its program.
extern "C" c10d::Backend* muster_test_backend(c10d::Store* store, int rank, int size) {
  const auto shared = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store);
  return sim::make_backend(shared, rank, size).release();
}

TEST(DeviceBackendOption, IsFoundByNameInEveryWay) {
  as_device_ranks(2, [] {
    sim::set_seed(2);
    ::setenv("MUSTER_BACKEND_PATH", MUSTER_BINARY_DIR "/tests/objects", 1);
    const auto names_it = [](const auto& runtime) {
      const auto plan = runtime.plan();
      EXPECT_NE(plan.find("over the backend sim from " MUSTER_BINARY_DIR "/tests/objects/libmuster_forwarding.so"),
                std::string::npos)
          << plan;
    };
    Accelerator accelerator({.device_backend = "forwarding", .strategy = "ddp"});
    names_it(accelerator);
    EXPECT_FALSE(staged_operations(accelerator, {}).contains("all_reduce"));
    names_it(Fabric({.device_backend = MUSTER_BINARY_DIR "/tests/objects/libmuster_forwarding.so"}));
    ::setenv("MUSTER_DEVICE_BACKEND", "forwarding", 1);
    names_it(Accelerator(AcceleratorOptions{}));
    ::unsetenv("MUSTER_DEVICE_BACKEND");
    EXPECT_EQ(testing::thrown_id([] { Accelerator({.cpu = true, .device_backend = "forwarding"}); }), "MU563");
  });
}

TEST(DeviceBackendOption, ThatOnlySomeRanksHaveIsAnErrorOnAll) {
  as_device_ranks(2, [] {
    const auto make = [] {
      Accelerator({.device_backend = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "0"
                                         ? DeviceBackend(simulated_backend())
                                         : DeviceBackend("none")});
    };
    const auto message = testing::thrown(make);
    EXPECT_TRUE(message.starts_with("MU558: rank ")) << message;
    EXPECT_NE(message.find("of the program for sim"), std::string::npos) << message;
  });
}

TEST(DeviceBackendOption, MustMakeABackendOfADevice) {
  as_device_ranks(2, [] {
    const auto id = [](comm::BackendEntry entry) {
      return testing::thrown_id(
          [&] { Accelerator accelerator({.device_backend = std::make_shared<comm::BackendEntry>(std::move(entry))}); });
    };
    const auto none = [](const auto&...) { return c10::intrusive_ptr<c10d::Backend>(); };
    EXPECT_EQ(id({c10::DeviceType::PrivateUse1, none}), "MU560");
  });
  for (const auto& entry : {comm::BackendEntry{}, comm::BackendEntry{.device = c10::DeviceType::CUDA, .make = nullptr}})
    EXPECT_EQ(
        testing::thrown_id([&] { comm::connect({}, {.device_backend = std::make_shared<comm::BackendEntry>(entry)}); }),
        "MU560");
}

/// What operations that failed have left to the device is reported to whoever waits for it next.
void end_what_is_left() {
  for (int attempt = 0; attempt < 4; ++attempt) {
    try {
      return sim::set_seed(2);
    } catch (const std::exception&) {}
  }
}

/// One rank reduces something else in its second step; the devices cannot see what it is for.
TEST(DeviceBackendOption, RanksThatDisagreeAreToldBeforeAParameterChanges) {
  as_device_ranks(2, [] {
    sim::set_seed(3);
    Accelerator accelerator({.device_backend = simulated_backend(), .strategy = "ddp"});
    CourseNet net(19);
    auto [model, sgd] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const bool first = accelerator.is_main_process();
    at::Tensor before;
    std::string message;
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(testing::inputs(step, first ? 0 : 1).to(accelerator.device())).pow(2).mean());
      const auto own = torch::ones({3}, accelerator.device());
      const bool same = first || step == 0;
      accelerator.group().internal(same ? "my statistics" : "other statistics").all_reduce(own);
      before = net->parameters()[0].detach().clone();
      message = testing::thrown([&, o = sgd]() mutable { o.step(); });
      EXPECT_EQ(message == "no error", step == 0);
      sgd.zero_grad();
    }
    EXPECT_TRUE(
        message.starts_with("MU050: rank 0 called the library's all_reduce(sum) of float32 [3] for my "
                            "statistics, rank 1 called the library's all_reduce(sum) of float32 [3] for other "
                            "statistics"))
        << message;
    end_what_is_left();  // the group's end may have come before an operation of the peer's
    EXPECT_EQ(testing::difference_in_bits(net->parameters()[0].detach().cpu(), before.cpu()), "");
  });
}

TEST(DeviceBackendOption, RanksThatDisagreeAreToldBeforeAnythingIsSaved) {
  as_device_ranks(2, [] {
    Accelerator accelerator({.device_backend = simulated_backend(), .strategy = "ddp"});
    CourseNet net(19);
    const auto model = accelerator.prepare(net);
    const auto own = torch::ones({3}, accelerator.device());
    accelerator.group().internal(accelerator.is_main_process() ? "one" : "other").all_reduce(own);
    EXPECT_EQ(testing::thrown_id([&] { accelerator.save_model(model, "never_written"); }), "MU050");
    EXPECT_FALSE(std::filesystem::exists("never_written"));
  });
}

/// In a group of its own, which ends with the error. Reduces for another purpose on each rank, then does `then`.
template <class F>
void expect_told_before(const char* what, F then) {
  end_what_is_left();
  Accelerator accelerator({.device_backend = simulated_backend(), .strategy = "ddp"});
  const auto own = torch::ones({3}, accelerator.device());
  accelerator.group().internal(accelerator.is_main_process() ? "one" : "other").all_reduce(own);
  std::set<std::string> called;  // nothing but the comparison: what is staged would wait for a device that may hang
  accelerator.group().observe([&](const comm::OperationEvent& event) { called.insert(std::string(event.operation)); });
  const auto message = testing::thrown([&] { then(accelerator, own); });
  EXPECT_NE(message.find("of the device's operations"), std::string::npos) << what << ": " << message;
  EXPECT_EQ(called, std::set<std::string>{"all_gather_bytes"}) << what;
}

TEST(DeviceBackendOption, RanksThatDisagreeAreToldBeforeAnythingIsGathered) {
  as_device_ranks(2, [] {
    using Runtime = Accelerator;
    expect_told_before("gather", [](Runtime& runtime, const at::Tensor& own) { runtime.gather(own); });
    expect_told_before("for metrics",
                       [](Runtime& runtime, const at::Tensor& own) { runtime.gather_for_metrics(own, own); });
    expect_told_before("reduce", [](Runtime& runtime, const at::Tensor& own) { runtime.reduce(own); });
    expect_told_before("broadcast", [](Runtime& runtime, const at::Tensor& own) { runtime.broadcast(own); });
    expect_told_before("pad", [](Runtime& runtime, const at::Tensor& own) { runtime.pad_across_processes(own); });
    expect_told_before("objects", [](Runtime& runtime, const at::Tensor& own) {
      runtime.gather_object(std::vector<at::Tensor>{own.cpu()});
    });
    expect_told_before("metrics", [](Runtime& runtime, const at::Tensor& own) {
      MeanMetric mean;
      mean.update(own.cpu());
      runtime::end_metrics(runtime, {&mean});
    });
  });
}

/// In a group of its own, whose operations hang where ranks disagree, as NCCL's do.
template <class F>
void expect_told_at_once(const char* what, F call) {
  end_what_is_left();
  comm::BackendEntry entry{.device = c10::DeviceType::PrivateUse1,
                           .make = [](const auto& store, int rank, int size, const auto&) {
                             return sim::make_backend(store, rank, size, {.hangs = true});
                           }};
  Accelerator accelerator(
      {.device_backend = std::make_shared<const comm::BackendEntry>(std::move(entry)), .strategy = "ddp"});
  const auto message = testing::thrown([&] { call(accelerator, accelerator.is_main_process(), accelerator.device()); });
  EXPECT_TRUE(message.starts_with("MU050: ")) << what << ": " << message;
}

TEST(DeviceBackendOption, RanksThatGatherDifferentlyAreToldAtOnce) {
  as_device_ranks(2, [] {
    using Runtime = Accelerator;
    expect_told_at_once("shapes", [](Runtime& runtime, bool main, at::Device device) {
      (void)runtime.gather(torch::ones({main ? 4 : 5}, device));
    });
    expect_told_at_once("dtypes", [](Runtime& runtime, bool main, at::Device device) {
      (void)runtime.gather(torch::ones({4}, device).to(main ? at::kFloat : at::kLong));
    });
    expect_told_at_once("reductions", [](Runtime& runtime, bool main, at::Device device) {
      (void)runtime.reduce(torch::ones({4}, device), main ? "sum" : "mean");
    });
    expect_told_at_once("operations", [](Runtime& runtime, bool main, at::Device device) {
      const auto own = torch::ones({4}, device);
      (void)(main ? runtime.gather(own) : runtime.reduce(own));
    });
    expect_told_at_once("for metrics", [](Runtime& runtime, bool main, at::Device device) {
      (void)runtime.gather_for_metrics(torch::ones({main ? 3 : 4}, device));
    });
  });
}

/// A rank whose loss does not use the model reduces in step(), after the others' backward.
TEST(DeviceBackendOption, RanksThatReduceLateDoNotDisagree) {
  as_device_ranks(2, [] {
    sim::set_seed(2);
    Accelerator accelerator({.device_backend = simulated_backend(), .strategy = DDP{.find_unused_parameters = true}});
    CourseNet net(19);
    auto [model, sgd] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 2; ++step) {
      auto loss = model(testing::inputs(step, 0).to(accelerator.device())).pow(2).mean();
      if (!accelerator.is_main_process()) loss = torch::ones({}, loss.options()).requires_grad_();
      accelerator.backward(loss);
      EXPECT_EQ(testing::thrown_id([&, o = sgd]() mutable { o.step(); }), "no error");
      sgd.zero_grad();
    }
  });
}

}  // namespace
}  // namespace muster
