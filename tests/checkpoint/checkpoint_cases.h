#pragma once

#include <limits>
#include <string>

#include <ATen/ops/arange.h>

#include "muster/checkpoint/checkpoint.h"

namespace muster {

/// For tests that write many checkpoints and need none of them after a crash.
inline const WriteCheckpointOptions kQuickly{.durability = Durability::none};

/// A state with every kind of value, each of which text is hard on in its own way.
inline State every_kind_of_state(std::int64_t seed) {
  State state;
  state.set("nothing", State());
  state.set("yes", true);
  state.set("largest", std::numeric_limits<std::int64_t>::max());
  state.set("least", std::numeric_limits<std::int64_t>::min());
  state.set("seed", seed);
  state.set("three", 3.0);
  state.set("minus zero", -0.0);
  state.set("tenth", 0.1);
  state.set("tiny", std::numeric_limits<double>::denorm_min());
  state.set("huge", std::numeric_limits<double>::max());
  state.set("infinite", -std::numeric_limits<double>::infinity());
  state.set("not a number", std::numeric_limits<double>::quiet_NaN());
  state.set("text", "a \"quoted\" \\ line\nand \xc3\xa4\xe2\x82\xac\x01");
  state.set("bytes", std::string("\0\xff\xfe\x80 raw", 8));
  state.set("name/with % and \xff", State::List{1, State(), "two", State::List{}, State::Map{}});
  state.set("", State::Map{{"a", at::arange(seed, seed + 5)}, {"a/b", State::Map{{"c", at::arange(3, at::kByte)}}}});
  state.set("a", State::Map{{"b/c", at::arange(7, at::kDouble)}, {"b", State::Map{{"c", at::arange(1, at::kHalf)}}}});
  state.set("undefined", at::Tensor());
  state.set("empty", at::arange(0).view({0, 3}));
  return state;
}

/// Rank `rank`'s slice of a tensor of `count` elements cut into `world` runs: element i is i + `first`.
inline TensorShard shard_of(const std::string& name, std::int64_t count, int rank, int world, std::int64_t first,
                            at::ScalarType type = at::kFloat) {
  const std::int64_t begin = count * rank / world, end = count * (rank + 1) / world;
  return {.name = name, .shape = {count}, .begin = begin, .local = at::arange(begin + first, end + first, type)};
}

}  // namespace muster
