#include <algorithm>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>

#include <c10/util/ScopeExit.h>

#include "base/log.h"
#include "core.h"
#include "muster/base/error.h"
#include "muster/schedule/composed_schedulers.h"
#include "muster/trainer/model_checkpoint.h"
#include "muster/trainer/model_summary.h"
#include "muster/trainer/progress_bar.h"
#include "muster/trainer/terminated.h"
#include "option_check.h"
#include "option_fields.h"

namespace muster::trainer {
namespace {

void require_own_keys(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::set<std::string> keys;
  for (const auto& callback : callbacks)
    if (!callback->state_dict().empty() && !keys.insert(callback->state_key()).second) refuse_equal_keys(*callback);
}

bool is_terminated(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Terminated&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Adds when preparation happens: the runtime's messages name prepare(), which a Trainer's program does not call.
void say_when_prepared(const std::function<void()>& f) {
  try {
    f();
  } catch (Error& error) {
    const std::string text = error.what();
    if (text.find("prepare") != text.npos && text.find("Trainer") == text.npos)
      static_cast<std::runtime_error&>(error) = std::runtime_error(
          text +
          " (a Trainer prepares the module after its configure_model(), and optimizers and schedulers after "
          "configure_optimizers(); trainer().model() is the prepared module)");
    throw;
  }
}

bool is_model_checkpoint(const std::shared_ptr<Callback>& callback) {
  return dynamic_cast<const ModelCheckpoint*>(callback.get()) != nullptr;
}

/// Adds a callback of this class unless one exists.
template <class C>
void add_default(TrainerOptions& options) {
  if (!has_callback<C>(options.callbacks)) options.callbacks.push_back(std::make_shared<C>());
}

bool is_plateau(const AnyLRScheduler& scheduler) {
  if (const auto* own = std::get_if<std::shared_ptr<LRScheduler>>(&scheduler.held()))
    return dynamic_cast<const ReduceLROnPlateau*>(own->get()) != nullptr;
  return std::holds_alternative<std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler>>(scheduler.held());
}

}  // namespace

void refuse_equal_keys(const Callback& callback) {
  throw UsageError("MU452", "two callbacks save their state as \"" + callback.state_key() +
                                "\", and only one could be loaded again; override state_key() so that they differ, or "
                                "leave one out");
}

Core::Core(Trainer& trainer, const TrainerOptions& given)
    : trainer(trainer), options(checked(with_given_options(given, Environment::of_process()))),
      runtime(runtime_options(options)), hooks(trainer) {
  if (options.enable_progress_bar) add_default<TrainerProgressBar>(options);
  if (options.enable_model_summary) add_default<ModelSummary>(options);
  if (options.enable_checkpointing) add_default<ModelCheckpoint>(options);
  runtime.launch();
  options.accumulate_grad_batches = runtime.gradient_accumulation_steps();  // the launcher may have set it
  if (options.fast_dev_run == 0) experiment.open(runtime, options);
}

std::vector<std::shared_ptr<Callback>> Core::all_callbacks() {
  auto all = options.callbacks;
  auto own = hooks.module(Hook::configure_callbacks, &TrainerModule::configure_callbacks);
  if (std::ranges::any_of(own, [](const auto& one) { return !one; }))
    raise({"configure_callbacks() returned an empty pointer"});
  std::erase_if(all, [&](const auto& given) {
    return std::ranges::any_of(own, [&](const auto& one) { return typeid(*one) == typeid(*given); });
  });
  all.insert(all.end(), own.begin(), own.end());
  std::ranges::stable_sort(all, {}, [&](const auto& one) { return std::pair(one->place(), is_model_checkpoint(one)); });
  require_own_keys(all);
  return all;
}

void Core::prepare_data() {
  runtime.local_main_process_first([&] {
    if (!runtime.is_local_main()) return;
    if (inputs_.data) inputs_.data->prepare_data();
    hooks.module(Hook::prepare_data, &TrainerModule::prepare_data);
  });
}

void Core::prepare_model() {
  auto& module = *inputs_.module;
  const auto holder = module.prepared_.get();
  if (holder == trained_module) return;
  if (holder) holder->release();
  trained_module->drop();
  trained_module->model = runtime.prepare(std::shared_ptr<torch::nn::Module>(inputs_.module));
  trained_module->module = &module;
  module.prepared_.set(module, trained_module);
  if (options.sync_batchnorm) runtime.convert_sync_batchnorm(trained_module->model);
}

void Core::begin(Stage stage) {
  hooks.begin(inputs_.module.get(), options.callbacks);
  prepared_loaders_ = {};
  if (stage == Stage::fit) prepared_kinds_.clear(), validation_loaded_.reset();
  modes_.clear();
  progress.point = SavePoint::none;
  training_book_.begin();
  evaluation_book_.begin();
  if (stage == Stage::fit) runtime.free_memory();  // drops a window that the last fit() left open
  window_.begins = true;
  window_.has_loss = evaluating_ = filler_ = sanity_checking = training = false;
  hooks.begin(inputs_.module.get(), all_callbacks());
  prepare_data();
  if (inputs_.data) inputs_.data->setup(stage);
  hooks.both(Hook::setup, &Callback::setup, &TrainerModule::setup, stage);
  hooks.module(Hook::configure_model, &TrainerModule::configure_model);
  prepare_model();
  log_hyperparameters();
}

/// Calls every teardown once, even if some throw, then rethrows the first exception.
void Core::end(Stage stage) {
  std::exception_ptr first;
  const auto attempt = [&](const auto& f) {
    try {
      hooks.run(Hook::teardown, f);
    } catch (...) {
      if (std::exchange(first, first ? first : std::current_exception()))
        log::warning("teardown of several callbacks or of the module threw; the first exception is passed on");
    }
  };
  if (inputs_.data) attempt([&] { inputs_.data->teardown(stage); });
  for (const auto& callback : hooks.callbacks()) attempt([&] { callback->teardown(trainer, *inputs_.module, stage); });
  attempt([&] { inputs_.module->teardown(stage); });
  if (first) std::rethrow_exception(first);
}

void Core::fail(Stage stage, const std::exception_ptr& error, bool torn_down) noexcept {
  const auto attempt = [](const char* what, const std::function<void()>& f) {
    try {
      f();
    } catch (const std::exception& another) {
      log::warning(what, " threw while a run was ending by another exception: ", another.what());
    } catch (...) {
      log::warning(what, " threw while a run was ending by another exception");
    }
  };
  failed_ = !is_terminated(error);
  const auto finish = c10::make_scope_exit([&] { failed_ = false; });
  attempt("the last step", [&] { trained_module->wait_for_steps(); });
  attempt("on_exception", [&] { hooks.callbacks(Hook::on_exception, &Callback::on_exception, error); });
  if (inputs_.data) attempt("on_exception of the data module", [&] { inputs_.data->on_exception(error); });
  attempt("an asynchronous save", [&] { runtime.wait_for_save(); });
  attempt("the logger", [&] { experiment.end_run(RunStatus::failed); });
  attempt("reset of a metric", [&] {
    training_book_.metrics().reset();
    evaluation_book_.metrics().reset();
  });
  if (!torn_down) attempt("teardown", [&] { end(stage); });
}

/// Called before the current run's state is changed.
void Core::refuse_nested_run(const RunInputs& inputs) const {
  if (stage_)
    throw UsageError("MU436",
                     "fit(), validate(), test() or predict() was called in a hook, while this Trainer makes another "
                     "run: call it after that run, or give it a Trainer of its own");
  if (inputs.module->core_)
    throw UsageError("MU436",
                     "fit(), validate(), test() or predict() was given a module that another Trainer runs now: call it "
                     "after that run");
}

void Core::run(RunInputs inputs, Stage stage, const std::function<void()>& body) {
  // A checkpoint saved after an evaluation still holds the position of training.
  std::array<PreparedLoaders, kStepKinds> of_fit;
  if (stage != Stage::fit) of_fit = std::exchange(prepared_loaders_, {});
  inputs_ = std::move(inputs);
  inputs_.module->core_ = this;
  stage_ = stage;
  const auto leave = [&] {
    inputs_.module->core_ = nullptr;
    stage_.reset();
    resumed_checkpoint_.reset();
    sanity_checking = evaluating_ = false;
    if (stage != Stage::fit) prepared_loaders_ = std::move(of_fit);
  };
  bool done = false;
  try {
    say_when_prepared([&] {
      begin(stage);
      body();
    });
    runtime.wait_for_save();
    experiment.end_run(RunStatus::success);
    done = true;
    end(stage);
  } catch (...) {
    fail(stage, std::current_exception(), done);
    leave();
    throw;
  }
  leave();
}

void Core::set_up_optimizers() {
  if (!inputs_.module->automatic_optimization) {
    const bool accumulates = options.accumulate_grad_batches > 1;
    if (accumulates || options.gradient_clip_val)
      throw UsageError("MU438", std::string(accumulates ? "accumulate_grad_batches" : "gradient_clip_val") +
                                    " is set, and the module optimizes by itself, so that it would have no effect: "
                                    "leave it out, and " +
                                    (accumulates ? "step every so many batches" : "call clip_gradients()") +
                                    " in training_step()");
  }
  trained_module->drop_optimizers();
  const auto configured = hooks.module(Hook::configure_optimizers, &TrainerModule::configure_optimizers);
  if (inputs_.module->automatic_optimization && configured.entries().size() > 1)
    throw UsageError("MU443",
                     "configure_optimizers returned " + std::to_string(configured.entries().size()) +
                         " optimizers, and automatic optimization steps one: set automatic_optimization = false "
                         "in the module's constructor, and step them in training_step()");
  if (configured.entries().empty() && runtime.is_main())
    log::warning("configure_optimizers returned no optimizer: nothing is updated, and global_step stays 0");
  for (const auto& entry : configured.entries()) {
    auto& optimizers = trained_module->optimizers;
    optimizers.push_back(std::make_unique<TrainedOptimizer>(*this, entry.optimizer, runtime.prepare(*entry.optimizer)));
    for (const auto& config : entry.schedulers) add_schedule(*optimizers.back(), config);
    trained_module->handles.emplace_back(*optimizers.back());
  }
}

void Core::add_schedule(TrainedOptimizer& trained, const LRSchedulerConfig& config) {
  const bool plateau = is_plateau(config.scheduler);
  if (config.frequency < 1)
    throw UsageError("MU443",
                     "the frequency of a scheduler is " + std::to_string(config.frequency) + "; give at least 1");
  if (plateau && config.monitor.empty() && inputs_.module->automatic_optimization)
    throw UsageError(
        "MU443",
        "ReduceLROnPlateau watches a metric: return it as muster::LRSchedulerConfig{.monitor = \"val_loss\", "
        ".scheduler = ...}");
  std::visit(
      [&](const auto& held) {
        if constexpr (requires { *held; })
          trained.schedules.push_back({.config = config,
                                       .scheduler = runtime::prepare_scheduler(runtime::state_of(runtime), held),
                                       .plateau = plateau});
        else throw UsageError("MU443", "configure_optimizers returned an LRSchedulerConfig without a scheduler");
      },
      config.scheduler.held());
  trained_module->schedulers.push_back(trained.schedules.back().scheduler);
}

}  // namespace muster::trainer
