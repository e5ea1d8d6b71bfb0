#include "muster/runtime/detail/resume.h"

#include <cstdint>
#include <cstdlib>

#include "checkpoint_opening.h"
#include "muster/base/detail/environment.h"
#include "muster/base/detail/log.h"
#include "muster/cluster/detail/variables.h"
#include "runtime_state.h"

namespace muster::runtime {

namespace fs = std::filesystem;

std::optional<fs::path> checkpoint_to_resume(RuntimeRef runtime) {
  auto& state = runtime.state();
  state.saves().wait();
  const auto folder = newest_of_all(state.group(), state.project());
  if (state.cluster().is_main()) {
    const auto where = numbered_folder(state.project()).string();
    if (folder) log::info("resume(): ", folder->string(), " is loaded");
    else if (state.cluster().restart_count == 0) log::info("resume(): there is no checkpoint in ", where);
    else log::warning("resume(): there is no complete checkpoint in ", where, ": this start of the job begins anew");
  }
  return folder;
}

std::optional<std::chrono::system_clock::time_point> start_of_restarted_job(RuntimeRef runtime) {
  const auto& cluster = runtime.state().cluster();
  const auto text = Environment::of_process().find(cluster::kJobStart);
  if (cluster.launcher != LauncherKind::muster || cluster.restart_count == 0 || !text) return std::nullopt;
  return std::chrono::system_clock::time_point(std::chrono::milliseconds(std::strtoll(text->c_str(), nullptr, 10)));
}

}  // namespace muster::runtime
