#include "core.h"

#include <c10/util/ScopeExit.h>

#include "base/log.h"
#include "limits.h"
#include "muster/base/error.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"
#include "options/trainer_fields.h"

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

}  // namespace

Core::Core(Trainer& trainer, const TrainerOptions& options)
    : run(trainer, options), run_log(run), loaders(run), watchers(run), optimization(run, run_log, loaders),
      checkpoints(run, run_log, loaders, watchers, optimization), votes(run, watchers, checkpoints),
      evaluation(run, run_log, loaders, watchers, votes),
      fit_loop(run, run_log, loaders, watchers, optimization, checkpoints, votes, evaluation) {}

void Core::fit(RunInputs inputs, const FitOptions& how) {
  refuse_nested_run(inputs);
  run.stop.begin();
  auto ckpt_path = how.ckpt_path;
  if (ckpt_path.empty() && has_callback<OnExceptionCheckpoint>(run.options.callbacks)) ckpt_path = "last";
  run_log.latest.clear();
  run.progress.batches = 0;  // may be left from an epoch that an exception ended
  run.progress.epoch_done = run.progress.last_batch = false;
  if (run.options.fast_dev_run == 0) votes.begin();
  const auto finish = c10::make_scope_exit([&] { votes.end(); });
  perform(std::move(inputs), Stage::fit, [&] { fit_loop.fit(ckpt_path); });
  if (votes.terminated()) throw Terminated();
}

std::vector<Metrics> Core::evaluate(RunInputs inputs, StepKind kind, const EvaluateOptions& how,
                                    const KeepOutput& keep) {
  std::vector<Metrics> results;
  refuse_nested_run(inputs);
  perform(std::move(inputs), static_cast<Stage>(kind), [&] {
    if (const auto folder = checkpoints.resolved(how.ckpt_path, /*required=*/true); !folder.empty())
      checkpoints.load_weights(folder);
    run.module().zero_grad();
    if (!evaluation_limit(run.options, kind).none()) results = evaluation.run(kind, std::nullopt, keep);
  });
  return results;
}

/// Called before the current run's state is changed.
void Core::refuse_nested_run(const RunInputs& inputs) const {
  if (run.stage())
    throw UsageError("MU436",
                     "fit(), validate(), test() or predict() was called in a hook, while this Trainer makes another "
                     "run: call it after that run, or give it a Trainer of its own");
  if (inputs.module->core_)
    throw UsageError("MU436",
                     "fit(), validate(), test() or predict() was given a module that another Trainer runs now: call it "
                     "after that run");
}

/// Runs `body` between setup and teardown.
void Core::perform(RunInputs inputs, Stage stage, const std::function<void()>& body) {
  // A checkpoint saved after an evaluation still holds the position of training.
  RunLoaders::All of_fit;
  if (stage != Stage::fit) of_fit = loaders.take();
  run.enter(std::move(inputs), stage);
  run.module().core_ = this;
  const auto leave = c10::make_scope_exit([&] {
    run.module().core_ = nullptr;
    run.leave();
    checkpoints.end_resume();
    if (stage != Stage::fit) loaders.put_back(std::move(of_fit));
  });
  bool done = false;
  try {
    say_when_prepared([&] {
      begin(stage);
      body();
    });
    run.runtime.wait_for_save();
    run_log.experiment.end_run(RunStatus::success);
    done = true;
    end(stage);
  } catch (...) {
    fail(stage, std::current_exception(), done);
    throw;
  }
}

void Core::begin(Stage stage) {
  const auto& data = run.inputs().data;
  run.hooks.begin(&run.module(), run.options.callbacks);
  loaders.begin(stage);
  run.forget_modes();
  run.progress.point = SavePoint::none;
  run_log.begin();
  if (stage == Stage::fit) run.runtime.free_memory();  // drops a window that the last fit() left open
  optimization.set_window(/*begins=*/true, /*has_loss=*/false);
  run.hooks.begin(&run.module(), all_callbacks());
  prepare_data();
  if (data) data->setup(stage);
  run.hooks.both(Hook::setup, &Callback::setup, &TrainerModule::setup, stage);
  run.hooks.module(Hook::configure_model, &TrainerModule::configure_model);
  prepare_model();
  run_log.log_hyperparameters();
}

/// Calls every teardown once, even if some throw, then rethrows the first exception.
void Core::end(Stage stage) {
  std::exception_ptr first;
  const auto attempt = [&](const auto& f) {
    try {
      run.hooks.run(Hook::teardown, f);
    } catch (...) {
      if (std::exchange(first, first ? first : std::current_exception()))
        log::warning("teardown of several callbacks or of the module threw; the first exception is passed on");
    }
  };
  if (run.inputs().data) attempt([&] { run.inputs().data->teardown(stage); });
  for (const auto& callback : run.hooks.callbacks())
    attempt([&] { callback->teardown(run.trainer, run.module(), stage); });
  attempt([&] { run.module().teardown(stage); });
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
  run.set_failed(!is_terminated(error));
  const auto finish = c10::make_scope_exit([&] { run.set_failed(false); });
  attempt("the last step", [&] { run.preparation->wait_for_steps(); });
  attempt("on_exception", [&] { run.hooks.callbacks(Hook::on_exception, &Callback::on_exception, error); });
  if (run.inputs().data) attempt("on_exception of the data module", [&] { run.inputs().data->on_exception(error); });
  attempt("an asynchronous save", [&] { run.runtime.wait_for_save(); });
  attempt("the logger", [&] { run_log.experiment.end_run(RunStatus::failed); });
  attempt("reset of a metric", [&] { run_log.reset_metrics(); });
  if (!torn_down) attempt("teardown", [&] { end(stage); });
}

std::vector<std::shared_ptr<Callback>> Core::all_callbacks() {
  auto all = run.options.callbacks;
  auto own = run.hooks.module(Hook::configure_callbacks, &TrainerModule::configure_callbacks);
  if (std::ranges::any_of(own, [](const auto& one) { return !one; }))
    raise({"configure_callbacks() returned an empty pointer"});
  std::erase_if(all, [&](const auto& given) {
    return std::ranges::any_of(own, [&](const auto& one) { return typeid(*one) == typeid(*given); });
  });
  all.insert(all.end(), own.begin(), own.end());
  const auto order_of = [](const auto& one) {
    return std::pair(one->place(), dynamic_cast<const ModelCheckpoint*>(one.get()) != nullptr);
  };
  std::ranges::stable_sort(all, {}, order_of);
  require_own_keys(all);
  return all;
}

void Core::prepare_data() {
  run.runtime.local_main_process_first([&] {
    if (!run.runtime.is_local_main()) return;
    if (run.inputs().data) run.inputs().data->prepare_data();
    run.hooks.module(Hook::prepare_data, &TrainerModule::prepare_data);
  });
}

void Core::prepare_model() {
  auto& module = run.module();
  const auto holder = module.prepared_.get();
  if (holder == run.preparation) return;
  if (holder) holder->release();
  run.preparation->drop();
  run.preparation->model = run.runtime.prepare(std::shared_ptr<torch::nn::Module>(run.inputs().module));
  run.preparation->module = &module;
  module.prepared_.set(module, run.preparation);
  if (run.options.sync_batchnorm) run.runtime.convert_sync_batchnorm(run.preparation->model);
}

}  // namespace muster::trainer
