#include "resolved_options.h"

#include <charconv>
#include <chrono>
#include <string>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/cluster/detail/variables.h"
#include "muster/device/detail/device.h"
#include "muster/launcher/detail/devices.h"
#include "muster/strategy/detail/resolve.h"

namespace muster::runtime {
namespace {

/// What the launcher requests replaces the default of the program, and must not contradict what the program set.
template <class Option, class Name>
void apply_request(const Environment& environment, const char* variable, Option& option, const Option& fallback,
                   Name name) {
  const auto requested = environment.find(variable);
  if (!requested) return;
  const auto wanted = [&] {
    if constexpr (requires { Option::parse(*requested); }) return Option::parse(*requested);
    else return Option(*requested);
  }();
  const std::string in_code(name(option)), asked(name(wanted));
  if (in_code != asked && in_code != std::string(name(fallback)))
    throw ConfigError("MU171", "the program asks for '" + in_code + "' and the launcher, by the variable " + variable +
                                   ", for '" + asked + "'; drop one of them");
  if (in_code != asked) option = wanted;
}

constexpr int64_t kMostSeconds = 1'000'000'000;

/// The same for the time-out; 0 requests nothing.
void follow_timeout(const Environment& environment, std::chrono::milliseconds& timeout,
                    std::chrono::milliseconds fallback) {
  const auto requested = environment.find(cluster::kTimeout);
  if (!requested) return;
  int64_t wanted = -1;
  const auto [end, error] = std::from_chars(requested->data(), requested->data() + requested->size(), wanted);
  if (error != std::errc() || end != requested->data() + requested->size() || wanted < 0 || wanted > kMostSeconds)
    throw ConfigError("MU021", formatted("variable {} is '{}', but a whole number of seconds is wanted",
                                         cluster::kTimeout, *requested));
  const std::chrono::milliseconds asked = std::chrono::seconds(wanted);
  if (wanted == 0 || asked == timeout) return;
  if (timeout != fallback)
    throw ConfigError("MU171", formatted("the program asks for a time-out of {:g} s and the launcher, by the variable "
                                         "{}, for {} s; drop one of them",
                                         std::chrono::duration<double>(timeout).count(), cluster::kTimeout, wanted));
  timeout = asked;
}

}  // namespace

RuntimeOptions resolved(RuntimeOptions options, const Environment& environment) {
  const RuntimeOptions defaults;
  const auto by_name = [](const auto& option) { return option.name(); };
  apply_request(environment, cluster::kPrecision, options.precision, defaults.precision, by_name);
  options.strategy = strategy::resolve_strategy(
      options.strategy,
      {.name = environment.find(cluster::kStrategy), .sharding = environment.find(cluster::kSharding)}, environment);
  apply_request(environment, cluster::kAccelerator, options.accelerator, defaults.accelerator,
                [](const std::string& s) { return s; });
  follow_timeout(environment, options.timeout, defaults.timeout);
  return options;
}

int processes_wanted(const RuntimeOptions& options) {
  if (!options.devices || options.devices->text() == "auto") return 0;
  return launcher::choose_devices({options.accelerator, options.devices->text(), device::count()}).count;
}

}  // namespace muster::runtime
