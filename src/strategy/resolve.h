#pragma once  // for other rooms

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/strategy/options.h"

namespace muster::strategy {

/// A launcher's request for a strategy, without the variables that Accelerate's launcher sets.
struct StrategyRequest {
  options::RawOptions fields = {};                 ///< "fsdp.stage", "ddp.bucket_cap_mb", ...
  std::optional<std::string> name = {};            ///< name of the strategy
  std::string place = "variable MUSTER_STRATEGY";  ///< source of the name
  std::optional<std::string> sharding =
      {};  ///< options of sharded training: "unit_min_elements=1000,unit_classes=Block,Head"
};

/// Combines the strategy of the program (`in_code`), the launcher's request (`request`) and Accelerate's variables, in
/// Combines the strategy of the program (`in_code`), the launcher's request (`request`) and Accelerate's variables, in
/// this order of precedence. A request replaces options that the program left at their defaults, and must not
/// contradict those that the program set. Accelerate's FSDP_* variables are read only if the resulting strategy shards;
/// ACCELERATE_USE_FSDP turns "auto" into "fsdp".
/// Throws: ConfigError (MU171) for contradictions; ConfigError (MU196) for an unknown option, or one that is not
/// "name=value"; ConfigError (MU197) for an unsupported option of Accelerate or Lightning, with what to use instead;
/// ConfigError (MU002) for a value that cannot be read; and as Strategy's constructor.
Strategy resolve_strategy(const Strategy& in_code, const StrategyRequest& request, const Environment& variables);

/// Descriptions of the options of sharded training, under their names in ShardedOptions.
std::vector<options::Description> sharded_option_descriptions();
/// Descriptions of the options of replicated training, under their names in DdpOptions.
std::vector<options::Description> replicated_option_descriptions();

/// The strategy's options as text, such as "fsdp.stage": "full". Code-only options and those of other strategies are
/// left out.
std::map<std::string, std::string> written_fields(const Strategy& strategy);

/// How Muster interprets a field of Accelerate's FSDP plugin or an argument of Lightning's FSDPStrategy.
struct PythonField {
  std::string name;      ///< name in Python; accepted as a name in StrategyRequest::sharding
  std::string variable;  ///< Accelerate's environment variable; may be empty
  std::string taken_as;  ///< one-sentence description for the reference
};
std::vector<PythonField> python_sharding_fields();

}  // namespace muster::strategy
