#include <cstdint>
#include <cstdlib>

#include "base/log.h"
#include "base/variables.h"
#include "checkpoint_opening.h"
#include "muster/base/environment.h"
#include "muster/runtime.h"
#include "muster/runtime/opened_checkpoint.h"
#include "runtime_state.h"

namespace muster {

namespace fs = std::filesystem;

std::optional<fs::path> runtime::checkpoint_to_resume(const Runtime& runtime) {
  auto& state = runtime::state_of(runtime);
  state.saves().wait();
  const auto folder = runtime::newest_of_all(state.placement().group(), state.project());
  if (state.placement().cluster().is_main()) {
    const auto where = runtime::numbered_folder(state.project()).string();
    if (folder) log::info("resume(): ", folder->string(), " is loaded");
    else if (state.placement().cluster().restart_count == 0) log::info("resume(): there is no checkpoint in ", where);
    else
      log::warning("resume(): there is no complete checkpoint in ", where,
                   ": this start of the job begins from scratch");
  }
  return folder;
}

std::optional<std::chrono::system_clock::time_point> runtime::start_of_restarted_job(const Runtime& runtime) {
  const auto& cluster = runtime::state_of(runtime).placement().cluster();
  const auto text = Environment::of_process().find(cluster::kJobStart);
  if (cluster.launcher != LauncherKind::muster || cluster.restart_count == 0 || !text) return std::nullopt;
  return std::chrono::system_clock::time_point(std::chrono::milliseconds(std::strtoll(text->c_str(), nullptr, 10)));
}

bool resume(Runtime& runtime, const LoadStateOptions& options) {
  const auto folder = runtime::checkpoint_to_resume(runtime);
  if (folder) runtime.load_state(*folder, options);
  return folder.has_value();
}

}  // namespace muster
