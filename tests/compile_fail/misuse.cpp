#include <muster/accelerator.h>
#include <muster/fabric.h>
#include <muster/trainer.h>
#include <torch/torch.h>

#ifndef WRONG
#define WRONG 0
#endif

/// As one that holds an open file.
struct Fixed {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
  int64_t size() const { return 4; }
  int64_t get(size_t i) const { return static_cast<int64_t>(i); }
};

/// As one that was written before 0.1.
struct FormerNames {
  muster::State save_state() const { return 1; }
  void load_state(const muster::State&) {}
};

void use(muster::Accelerator& accelerator, muster::Fabric& fabric, muster::DataLoader<torch::data::Example<>>& loader) {
  torch::nn::Linear net(2, 2);
  auto model = accelerator.prepare(net);
  auto batches = accelerator.prepare(loader);
  auto quiet = fabric.no_backward_sync(model);
  const muster::FabricOptions options{.precision = "bf16-mixed"}, by_bits{.precision = 16};
  Fixed fixed;
  const muster::DataLoader borrowed(std::ref(fixed)), shared(std::make_shared<Fixed>());
  std::vector<torch::data::Example<>> examples;
#if WRONG == 1
  // WRONG 1: prepare takes modules, optimizers, schedulers and muster::DataLoader
  accelerator.prepare(3);
#elif WRONG == 2
  // WRONG 2: give muster::DataLoader its dataset
  auto plain = torch::data::make_data_loader(torch::data::datasets::TensorDataset(torch::ones({2, 2})), 2);
  accelerator.prepare(*plain);
#elif WRONG == 3
  // WRONG 3: unknown_precision
  const muster::FabricOptions wrong{.precision = "bf17"};
#elif WRONG == 327
  // WRONG 327: a_number_for_a_precision_is_16_32_or_64
  const muster::FabricOptions wrong{.precision = 8};
#elif WRONG == 4
  // WRONG 4: deleted
  auto second = quiet;
#elif WRONG == 5
  // WRONG 5: number_of_fields_and_values_differ
  accelerator.print("{} of {}", 1);
#elif WRONG == 6
  // WRONG 6: muster::DataLoader keeps its dataset, and this one cannot be copied
  const muster::DataLoader dangling(*std::make_unique<Fixed>());
#elif WRONG == 101
  // WRONG 101: error: static assertion failed: muster::DataLoader takes a dataset, which this is not
  auto none = accelerator.prepare(muster::DataLoader(torch::ones(3), {.batch_size = 4}));
#elif WRONG == 102
  // WRONG 102: error: static assertion failed: muster::DataLoader takes a dataset, which this is not
  const muster::DataLoader no_function([](const Fixed&) { return 1; }, 4);
#elif WRONG == 103
  // WRONG 103: error: static assertion failed: muster::DataLoader: this dataset gives batches of another type
  const muster::DataLoader<torch::Tensor> other(examples, {.batch_size = 4});
#elif WRONG == 7
  // WRONG 7: torch::save takes no prepared model: write its weights by save_model
  torch::save(model, "net.pt");
#elif WRONG == 8
  // WRONG 8: torch::save takes no prepared optimizer
  torch::save(accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1)), "sgd.pt");
#elif WRONG == 209
  // WRONG 209: error: static assertion failed: the module's forward, or the function given to run, does not take these
  model(torch::ones(2), 3);
#endif
  accelerator.print("{} of {{}}: {:.2f}, {:{}}", 1, 2.0, 3, 4);
  accelerator.print("{1} of {0}", 1, 2);
  accelerator.print("{as it is}");
  accelerator.print(std::string("{}"), 1);
  (void)batches;
}

/// What the API's classes offer needs no further header.
void everything(muster::Accelerator& accelerator) {
  torch::nn::Linear net(2, 2);
  auto [model, adam] = accelerator.prepare({.move_to_device = false}, net, torch::optim::Adam(net->parameters()));
  auto schedule = accelerator.prepare(muster::OneCycleLR(*adam, {.max_lr = 0.1, .total_steps = 10}));
  muster::DataLoader loader(muster::from_batches(std::vector<torch::Tensor>{}));
  accelerator.join_uneven_inputs([] {}, {.even_batches = false}, model);
  accelerator.summon_full_params(model, [] {}, {.writeback = true});
  accelerator.profile([] {}, {.operators = true});
  const auto size = accelerator.find_executable_batch_size([](int64_t) {}, {.starting_batch_size = 8});
  auto average = accelerator.local_sgd(model, {.local_sgd_steps = size > 4 ? 4 : 2});
  auto collector = accelerator.collector<torch::Tensor, muster::PerRank<int>>();
  const auto padded = accelerator.pad_across_processes(torch::ones(2), {.pad_first = true});
  const auto part = accelerator.split_between_processes(std::vector<int>{1, 2}, {.apply_padding = true});
  const muster::State rest = accelerator.load("folder", {{"model", model}}, {.strict = false});
  accelerator.register_save_state_pre_hook([](muster::State& state, const auto&) { state.set("epoch", 1); }).remove();
  accelerator.logger().info("loss scale {}", adam.scaler_state().value_or(muster::GradScalerState{}).scale);
  muster::Trackers trackers = muster::init_trackers(accelerator, "run", {{"lr", 0.1}}, {.log_with = {"csv"}});
  muster::log_images(trackers, {{"noise", torch::rand({3, 8, 8})}});
  accelerator.group().all_reduce(padded, muster::comm::ReduceOp::max);
  const muster::AcceleratorOptions options{.strategy = muster::FSDP{.auto_wrap = false}};
  const muster::FabricOptions replicated{.strategy = muster::DDP{.bucket_cap_mb = 10}};
  const muster::KeptRandomStates kept(accelerator);
  const muster::TraceScope span(muster::trace(accelerator), "span");
  muster::OpenedCheckpoint(accelerator, "folder").load_models();
  (void)muster::resume(accelerator);
  (void)muster::agreed_votes(accelerator).stop;
  static_assert(MUSTER_VERSION_MAJOR >= 0);
}

void save_objects([[maybe_unused]] muster::Accelerator& accelerator) {
#if WRONG == 10
  // WRONG 10: error: static assertion failed: an object that is saved has state_dict() and load_state_dict(state),
  // which
  FormerNames object;
  accelerator.register_for_checkpointing(object);
#elif WRONG == 11
  // WRONG 11: error: static assertion failed: an object that is saved has state_dict() and load_state_dict(state),
  // which
  FormerNames object;
  accelerator.save("folder", {{"object", object}});
#endif
}

void prepare_functions(muster::Accelerator& accelerator, muster::Fabric& fabric) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
#if WRONG == 201
  // WRONG 201: error: static assertion failed: a function given to prepare makes an optimizer of the module before it
  accelerator.prepare([](auto parameters) { return torch::optim::SGD(parameters, 0.1); }, net);
#elif WRONG == 202
  // WRONG 202: error: static assertion failed: a function given to prepare makes a scheduler of the optimizer before it
  accelerator.prepare(net, [](torch::optim::Optimizer& o) { return torch::optim::StepLR(o, 1); });
#elif WRONG == 203
  // WRONG 203: error: static assertion failed: a function given to prepare names a module, and no module of this class
  accelerator.prepare(net, [](torch::nn::Conv1dImpl& conv) { return torch::optim::SGD(conv.parameters(), 0.1); });
#elif WRONG == 204
  // WRONG 204: error: static assertion failed: a function given to prepare makes an optimizer, which it returns
  accelerator.prepare(net, [](auto parameters) { return parameters.size(); });
#elif WRONG == 205
  // WRONG 205: error: static assertion failed: a function given to prepare takes one argument
  accelerator.prepare(net, [](auto& parameters) { return torch::optim::SGD(parameters, 0.1); });
#elif WRONG == 206
  // WRONG 206: error: static assertion failed: a function given to prepare that takes torch::optim::Optimizer& returns
  accelerator.prepare(net, sgd, [](torch::optim::Optimizer& o) { return o.size(); });
#elif WRONG == 210
  // WRONG 210: error: static assertion failed: two functions given to prepare would make optimizers of one module
  const auto make = [](auto parameters) { return torch::optim::SGD(parameters, 0.1); };
  accelerator.prepare(torch::nn::Linear(3, 3), net, make, make);
#elif WRONG == 207
  // WRONG 207: error: static assertion failed: prepare takes no torch::jit::Module
  accelerator.prepare(torch::jit::Module());
#elif WRONG == 208
  // WRONG 208: error: static assertion failed: prepare takes no torch::jit::Module
  fabric.setup(torch::jit::Module());
#endif
  fabric.setup(net);
  accelerator.prepare(
      net, sgd, [](torch::optim::Optimizer& o) { return torch::optim::StepLR(o, 1); },
      [](auto parameters) { return torch::optim::SGD(parameters, 0.1); });
}

struct Learner : muster::TrainerModule {
  torch::Tensor training_step(torch::data::Example<>& batch, int64_t) { return batch.data; }
};
struct TensorLearner : muster::TrainerModule {
  torch::Tensor training_step(torch::Tensor batch, int64_t) { return batch; }
};
struct Reader : muster::TrainerModule {
  void validation_step(torch::data::Example<>&, int64_t) {}
};

void learn(muster::Trainer& trainer, muster::DataLoader<torch::data::Example<>>& loader) {
#if WRONG == 601
  // WRONG 601: error: static assertion failed: this module's training_step(batch, batch_idx) is private or does not
  // take
  trainer.fit(TensorLearner(), loader);
#elif WRONG == 602
  // WRONG 602: error: static assertion failed: fit takes a module with training_step(batch, batch_idx)
  trainer.fit(Reader(), loader);
#elif WRONG == 603
  // WRONG 603: marked
  struct Misspelled : muster::TrainerModule {
    void on_train_epoch_ended() override {}
  };
#elif WRONG == 604
  // WRONG 604: a Trainer takes objects of classes derived from muster::TrainerModule
  trainer.fit(torch::nn::Linear(2, 2), loader);
#elif WRONG == 605
  // WRONG 605: this_is_none_of_the_known_words
  const muster::EarlyStoppingOptions wrong{.mode = "best"};
#endif
  trainer.fit(Learner(), loader);
}

void step_wrongly(muster::Trainer& trainer, muster::DataLoader<torch::data::Example<>>& loader) {
  using Batch = torch::data::Example<>;
#if WRONG == 606
  // WRONG 606: error: static assertion failed: this module's training_step(batch, batch_idx) is private or does not
  class Private : public muster::TrainerModule {
    torch::Tensor training_step(Batch& batch, int64_t) { return batch.data; }
  };
  trainer.fit(Private(), loader);
#elif WRONG == 607
  // WRONG 607: error: static assertion failed: training_step returns the loss: a Tensor, a struct or map with a Tensor
  struct NoLoss : muster::TrainerModule {
    std::string training_step(Batch&, int64_t) { return "loss"; }
  };
  trainer.fit(NoLoss(), loader);
#elif WRONG == 608
  // WRONG 608: error: static assertion failed: this module has no validation_step(batch, batch_idx), which the loader's
  trainer.fit(Learner(), loader, loader);
#elif WRONG == 609
  // WRONG 609: error: static assertion failed: this module's test_step(batch, batch_idx) is private or does not take
  struct OtherBatch : muster::TrainerModule {
    void test_step(std::vector<torch::Tensor>&, int64_t) {}
  };
  trainer.test(OtherBatch(), loader);
#elif WRONG == 610
  // WRONG 610: error: static assertion failed: predict_step(batch, batch_idx) returns its prediction
  struct Silent : muster::TrainerModule {
    void predict_step(Batch&, int64_t) {}
  };
  trainer.predict(Silent(), loader);
#elif WRONG == 611
  // WRONG 611: error: static assertion failed: this module has no predict_step(batch, batch_idx), which the loader's
  trainer.predict(Reader(), loader);
#elif WRONG == 612
  // WRONG 612: error: static assertion failed: this module's on_train_batch_end(output, batch, batch_idx) is private or
  struct BatchFirst : Learner {
    void on_train_batch_end(Batch&, const muster::StepOutput&, int64_t) {}
  };
  trainer.fit(BatchFirst(), loader);
#elif WRONG == 613
  // WRONG 613: error: static assertion failed: this module's transfer_batch_to_device(batch, device, dataloader_idx) is
  struct NoDevice : Learner {
    void transfer_batch_to_device(Batch&) {}
  };
  trainer.fit(NoDevice(), loader);
#endif
  trainer.fit(Learner(), loader);
}

void step_with_other_arguments(muster::Trainer& trainer, muster::DataLoader<torch::data::Example<>>& loader) {
  using Batch = torch::data::Example<>;
#if WRONG == 614
  // WRONG 614: error: static assertion failed: this module's validation_step(batch, batch_idx) is private or does not
  struct TextRead : Learner {
    void validation_step(std::string&, int64_t) {}
  };
  trainer.validate(TextRead(), loader);
#elif WRONG == 615
  // WRONG 615: error: static assertion failed: this module's predict_step(batch, batch_idx) is private or does not take
  struct TextBatch : Learner {
    torch::Tensor predict_step(const std::string&, int64_t) { return {}; }
  };
  trainer.predict(TextBatch(), loader);
#elif WRONG == 616
  // WRONG 616: error: static assertion failed: this module's training_step(batch, batch_idx) is private or does not
  struct NamedIndex : muster::TrainerModule {
    torch::Tensor training_step(Batch& batch, const std::string&) { return batch.data; }
  };
  trainer.fit(NamedIndex(), loader);
#endif
  trainer.fit(Learner(), loader);
}

void give_wrongly(muster::Trainer& trainer, muster::DataLoader<torch::data::Example<>>& loader) {
#if WRONG == 621
  // WRONG 621: error: static assertion failed: this module's train_dataloader() is private, takes arguments, or does
  // not
  struct NoLoader : Learner {
    int train_dataloader() { return 3; }
  };
  trainer.fit(NoLoader());
#elif WRONG == 622
  // WRONG 622: error: static assertion failed: data is given as loaders (muster::DataLoader, or a std::tuple
  trainer.fit(Learner(), torch::ones(2));
#elif WRONG == 623
  // WRONG 623: error: static assertion failed: configure_optimizers returns optimizers, std::shared_ptrs of them, and
  struct Layers : Learner {
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 2));
    muster::Optimizers configure_optimizers() override { return {torch::optim::SGD(parameters(), 0.1), layer}; }
  };
#elif WRONG == 624
  // WRONG 624: error: static assertion failed: configure_sharded_model() is the older name of configure_model()
  struct Twice : Learner {
    void configure_model() override {}
    void configure_sharded_model() override {}
  };
  trainer.fit(Twice(), loader);
#elif WRONG == 625
  // WRONG 625: error: static assertion failed: this class must not be final: Muster derives from it to look for its
  struct Last final : Learner {};
  trainer.fit(Last(), loader);
#endif
  trainer.fit(Learner(), loader);
}
