#pragma once

#include <chrono>
#include <filesystem>
#include <optional>

#include "muster/runtime/detail/state_access.h"
#include "muster/runtime/options.h"

namespace muster {

namespace runtime {

/// The newest complete checkpoint of the project's folder, or storage; nullopt: there is none. The log names it.
/// Collective. Throws: ConfigError (MU244) if the options name no folder.
std::optional<std::filesystem::path> checkpoint_to_resume(const Runtime& runtime);

/// When the job began, if `muster run` has started its ranks again since; nullopt: it has not. Not collective.
std::optional<std::chrono::system_clock::time_point> start_of_restarted_job(const Runtime& runtime);

}  // namespace runtime

/// Loads the newest complete checkpoint of the project's folder, as load_state() does, if there is one. Returns whether
/// there was: false at the first start of a program. So one command starts a job and goes on with it, by hand or by
/// `muster run --max-restarts`.
/// Requires: what is to be loaded is prepared and registered. Collective.
/// Throws: ConfigError (MU244) if the options name no folder; as load_state().
bool resume(Runtime& runtime, const LoadStateOptions& options = {});

}  // namespace muster
