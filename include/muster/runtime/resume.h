#pragma once

#include <chrono>
#include <filesystem>
#include <optional>

#include "muster/runtime/detail/state_access.h"
#include "muster/runtime/options.h"

namespace muster {

namespace runtime {

/// The newest complete checkpoint in the project's folder or storage, which it names in the log; nullopt if there is
/// none.
/// Collective. Throws: ConfigError (MU244) if the options name no folder.
std::optional<std::filesystem::path> checkpoint_to_resume(const Runtime& runtime);

/// The time when the job began, if `muster run` has restarted its ranks since; nullopt if not. Not collective.
std::optional<std::chrono::system_clock::time_point> start_of_restarted_job(const Runtime& runtime);

}  // namespace runtime

/// Loads the newest complete checkpoint in the project's folder, as load_state() does, if there is one. Returns whether
/// it loaded one: false at the first start of a program. So one command both starts and continues a job, by hand or by
/// `muster run --max-restarts`.
/// Requires: the objects to load are prepared and registered.
/// Collective.
/// Throws: ConfigError (MU244) if the options name no folder; as load_state().
bool resume(Runtime& runtime, const LoadStateOptions& options = {});

}  // namespace muster
