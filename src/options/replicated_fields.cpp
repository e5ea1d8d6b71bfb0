#include "base/listing.h"
#include "base/options_line.h"
#include "options/sharded_fields.h"
#include "options/strategy_names.h"

namespace muster::strategy {
namespace {

template <class Get>
ReplicatedField field(std::string name, Get get, options::Description description) {
  description.variable = options::variable_of("ddp." + name);
  return options::option_at<parallel::DdpOptions>(std::move(name), get, std::move(description));
}

/// A field whose value must pass a check, before any process starts. `wanted` says in an error what does.
template <class Get, class Check>
ReplicatedField checked_field(std::string name, Get get, options::Description description, Check check,
                              std::string wanted) {
  auto checked = field(std::move(name), get, std::move(description));
  checked.read = [get, check, wanted = std::move(wanted), read = checked.read](parallel::DdpOptions& options,
                                                                               const std::string& text) {
    const auto unreadable = read(options, text);
    return unreadable.empty() && !check(get(options)) ? wanted : unreadable;
  };
  return checked;
}

/// A field with a size in MiB; 0 gives every parameter its own bucket.
template <class Get>
ReplicatedField size_field(std::string name, Get get, options::Description description) {
  return checked_field(
      std::move(name), get, std::move(description), [](double size) { return size >= 0; }, "a number from 0");
}

}  // namespace

const std::vector<ReplicatedField>& replicated_fields() {
  static const std::vector<ReplicatedField> fields{
      field("broadcast_buffers", [](auto& o) -> auto& { return o.broadcast_buffers; },
            {.help = "buffers get the values of the main process at the end of each step",
             .tested_by = "ReplicatedModel.BuffersComeFromRankZeroInOneMessage"}),
      size_field("bucket_cap_mb", [](auto& o) -> auto& { return o.bucket_cap_mb; },
                 {.help = "gradients are communicated in buckets of about this size",
                  .unit = "MiB",
                  .tested_by = "ReplicatedModel.CommunicationOverlapsBackward"}),
      checked_field(
          "comm_hook", [](auto& o) -> auto& { return o.comm_hook; },
          {.help = "how gradients are communicated: none, fp16, bf16 or powersgd",
           .aliases = {"ddp_comm_hook"},
           .tested_by = "CommHook.CastsHalveTheBytesAndKeepTheGradient"},
          parallel::is_comm_hook, "one of " + joined(parallel::kCommHooks)),
      field("custom_hook", [](auto& o) -> auto& { return o.custom_hook; },
            {.help = "a custom communication hook", .tested_by = "CommHook.TakesTheUsersOwn"}),
      field("find_unused_parameters", [](auto& o) -> auto& { return o.find_unused_parameters; },
            {.help = "parameters may get no gradient in a step",
             .tested_by = "ReplicatedModel.UnusedParametersMayBeAllowed"}),
      size_field("first_bucket_mb", [](auto& o) -> auto& { return o.first_bucket_mb; },
                 {.help = "size of the first bucket",
                  .unit = "MiB",
                  .tested_by = "ReplicatedModel.CommunicationOverlapsBackward"}),
      field("power_sgd.min_compression_rate", [](auto& o) -> auto& { return o.power_sgd.min_compression_rate; },
            {.help = "a gradient is compressed if that makes it smaller by more than this factor",
             .aliases = {"min_compression_rate"},
             .tested_by = "CommHook.PowerSgdCompressesOnlyWhatPays"}),
      field("power_sgd.rank", [](auto& o) -> auto& { return o.power_sgd.rank; },
            {.help = "columns of the two factors",
             .aliases = {"matrix_approximation_rank"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("power_sgd.seed", [](auto& o) -> auto& { return o.power_sgd.seed; },
            {.help = "seed of the first factors",
             .aliases = {"random_seed"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("power_sgd.start_iteration", [](auto& o) -> auto& { return o.power_sgd.start_iteration; },
            {.help = "full gradients are communicated in backwards before this one",
             .aliases = {"start_powerSGD_iter"},
             .tested_by = "CommHook.PowerSgdGoesOnAfterALoad"}),
      field("power_sgd.use_error_feedback", [](auto& o) -> auto& { return o.power_sgd.use_error_feedback; },
            {.help = "the compression error is added to the next gradient",
             .aliases = {"use_error_feedback"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("power_sgd.warm_start", [](auto& o) -> auto& { return o.power_sgd.warm_start; },
            {.help = "each factorization starts from the previous one",
             .aliases = {"warm_start"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("static_graph", [](auto& o) -> auto& { return o.static_graph; },
            {.help = "the same parameters get gradients in every step",
             .tested_by = "ReplicatedModel.StaticGraphLearnsTheSetAndHoldsToIt"}),
  };
  return fields;
}

}  // namespace muster::strategy
