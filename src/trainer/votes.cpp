#include "votes.h"

#include <csignal>

#include "base/log.h"
#include "checkpoints.h"
#include "cluster/reading.h"
#include "comm/agreement.h"
#include "muster/base/environment.h"
#include "muster/trainer/trainer.h"
#include "run.h"
#include "watchers.h"

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

void StopVote::request() {
  if (runtime_.world_size() == 1) agreed_ = true;
  else vote_to_stop(runtime_, requested_ = true);
}

void StopVote::begin() {
  agreed_ = requested_ = false;
  forget_votes(runtime_);
}

void StopVote::set(bool agreed) {
  agreed_ = agreed;
  vote_to_stop(runtime_, requested_ = false);
}

void StopVote::agree() {
  if (runtime_.world_size() == 1 || agreed_) return;
  comm::CoalescedAllReduce votes(runtime_.group(), "whether training stops");
  votes.add(requested_, comm::ReduceOp::max);
  votes.run();
  if (votes.result(0) > 0) set(true);
}

void VoteHandler::begin() {
  signals_.emplace(run_.runtime);
  if (std::get_terminate() != end_terminated) terminate_before = std::set_terminate(end_terminated);
}

bool VoteHandler::terminated() { return signals_ && signals_->received() == SIGTERM; }

void VoteHandler::handle() {
  if (signals_ && run_.runtime.is_main() && watchers_.time_is_up()) run_.runtime.set_trigger();
  const auto votes = agreed_votes(run_.runtime);
  if (votes.stop) run_.stop.set(true);
  if (!signals_) return;
  if (votes.trigger) watchers_.save_by_time();
  if (votes.signal != 0) save_for_signal(votes.signal);
}

void VoteHandler::save_for_signal(int signal) {
  const auto folder = checkpoints_.save_numbered();
  const auto& runtime = run_.runtime;
  if (runtime.is_main())
    log::warning(signal == SIGTERM ? "SIGTERM: training ends here; " : "SIGUSR1: ", folder.string(),
                 " holds it, for ckpt_path = \"hpc\"");
  if (signal == SIGTERM) throw Terminated{folder};
  signals_->forget(signal);
  runtime.main_process_first([&] {
    if (runtime.is_main()) queue_again(run_.options, folder);
  });
}

}  // namespace muster::trainer
