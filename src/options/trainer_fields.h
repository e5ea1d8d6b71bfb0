#pragma once  // for other rooms

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/trainer/options.h"

// Why: docs/decisions/0104-the-trainers-options-as-text.md.
namespace muster::trainer {

/// The options of TrainerOptions that the runtime does not have, each described once as "trainer.max_epochs" and so on.
/// Options of both, such as `strategy`, are the runtime's. To add an option, add its line in trainer_fields.cpp.
/// Why: docs/decisions/0079-options-are-described-once.md.
const options::Table<TrainerOptions>& option_table();

/// Checks that a Trainer without options in code could follow these options, by name.
/// Throws: ConfigError (MU002) for a value that cannot be read, (MU440) with all contradictions.
void check_launch_options(const options::RawOptions& given_options);

/// `values` with the launcher's requests in place of defaults.
/// Throws: ConfigError (MU171) for a contradiction, and as runtime::find_given_options().
TrainerOptions with_given_options(TrainerOptions values, const Environment& variables);

/// The runtime's options from TrainerOptions, and those that the loops decide.
RuntimeOptions runtime_options(const TrainerOptions& options);

/// Every option as text.
std::map<std::string, std::string> written_options(const TrainerOptions& options);

/// Collects what is wrong with some options.
struct Problems {
  void add_if(bool wrong, std::string text) {
    if (wrong) all.push_back(std::move(text));
  }
  void least(const char* name, std::optional<int64_t> value, int64_t least);

  std::vector<std::string> all = {};
};

/// Everything that is wrong with the options, except what depends on classes of callbacks. `asks(name)`: whether a
/// value was requested for this option, so that it can contradict another one.
std::vector<std::string> problems_of(const TrainerOptions& options,
                                     const std::function<bool(const std::string&)>& asks);

/// Throws: ConfigError (MU440) with all problems, if there are any.
void raise(const std::vector<std::string>& problems);
/// Throws: ConfigError (MU451) with all problems of a callback's options, if there are any.
void raise_for(std::string_view callback, const Problems& problems);

}  // namespace muster::trainer
