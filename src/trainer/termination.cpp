#include "termination.h"

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "cluster/requeue.h"
#include "core.h"
#include "muster/base/detail/environment.h"
#include "muster/trainer/model_checkpoint.h"
#include "muster/trainer/terminated.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

std::terminate_handler terminate_before = nullptr;  // process-wide, like the terminate handler itself

[[noreturn]] void end_terminated() {
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const Terminated&) {
      std::exit(Terminated::kExitCode);  // NOLINT(concurrency-mt-unsafe)
    } catch (...) {}                     // left to the previous handler
  }
  if (const auto before = std::exchange(terminate_before, nullptr)) before();
  std::abort();
}

/// The N of hpc_ckpt_N.ckpt; 0 for another name.
int64_t hpc_number(const fs::path& folder) {
  static constexpr std::string_view kStart = "hpc_ckpt_";
  const auto name = folder.stem().string();
  int64_t number = 0;
  if (folder.extension() != ".ckpt" || !name.starts_with(kStart)) return 0;
  const auto* end = name.data() + name.size();
  const auto [rest, problem] = std::from_chars(name.data() + kStart.size(), end, number);
  return problem == std::errc() && rest == end ? number : 0;
}

/// Requeues the job: by the program's function if set, otherwise through SLURM if it runs the job.
void queue_again(const TrainerOptions& options, const fs::path& folder) {
  if (options.requeue) return options.requeue(folder);
  const auto job = cluster::slurm_job(Environment::of_process());
  if (job.empty()) return;
  const auto problem = cluster::requeue_slurm_job(job);
  if (problem.empty()) log::warning("SLURM queues job ", job, " again");
  else
    log::warning("SLURM does not queue job ", job, " again: ", problem, "; submit it again by sbatch, or set requeue");
}

}  // namespace

TerminationScope::TerminationScope(const Runtime& runtime) : signals_(runtime) {
  if (std::get_terminate() != end_terminated) terminate_before = std::set_terminate(end_terminated);
}

fs::path newest_hpc_checkpoint(const fs::path& folder) {
  fs::path newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (hpc_number(entry.path()) > hpc_number(newest)) newest = entry.path();
  return newest;
}

/// Acts on the votes of ranks: stops, signals, and checkpoints that are due by time.
void Core::handle_votes() {
  if (termination_ && runtime.is_main())
    for (const auto& callback : hooks.callbacks())
      if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get()); saver && saver->time_is_up())
        runtime.set_trigger();
  const auto votes = agreed_votes(runtime);
  if (votes.stop) stop.set(true);
  if (!termination_) return;
  if (votes.trigger)
    for (const auto& callback : hooks.callbacks())
      if (auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get())) saver->save_by_time(trainer);
  if (votes.signal != 0) save_for_signal(votes.signal);
}

void Core::save_for_signal(int signal) {
  const auto& root = options.default_root_dir;
  const auto number = runtime.broadcast_object(hpc_number(newest_hpc_checkpoint(root)) + 1);
  const auto folder = root / ("hpc_ckpt_" + std::to_string(number) + ".ckpt");
  save_checkpoint(folder, {});
  if (runtime.is_main())
    log::warning(signal == SIGTERM ? "SIGTERM: training ends here; " : "SIGUSR1: ", folder.string(),
                 " holds it, for ckpt_path = \"hpc\"");
  if (signal == SIGTERM) throw Terminated{folder};
  termination_->signals().forget(signal);
  runtime.main_process_first([&] {
    if (runtime.is_main()) queue_again(options, folder);
  });
}

}  // namespace muster::trainer
