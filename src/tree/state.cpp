#include "muster/tree/state.h"

#include <bit>
#include <cstring>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster {
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto x = a.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  const auto y = b.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

const State* find_in(const State::Map& map, std::string_view name) noexcept {
  const auto found = std::find_if(map.begin(), map.end(), [&](const auto& entry) { return entry.first == name; });
  return found == map.end() ? nullptr : &found->second;
}

}  // namespace

std::string_view name_of(State::Kind kind) {
  constexpr std::string_view kNames[] = {"nothing", "a truth value", "an integer", "a number",
                                         "text",    "a tensor",      "a list",     "named states"};
  return kNames[static_cast<std::size_t>(kind)];
}

State::State(Map value) : value_(std::move(value)) {
  std::vector<std::string_view> names;
  for (const auto& [name, _] : map()) names.push_back(name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    throw CheckpointError("MU209", "the name \"" + shown(*twice) + "\" comes twice among: " +
                                       listed(map(), [](const auto& entry) { return shown(entry.first); }));
}

template <class T>
const T& State::get(Kind wanted) const {
  if (const auto* value = std::get_if<T>(&value_)) return *value;
  throw CheckpointError(
      "MU208", "a saved state holds " + std::string(name_of(kind())) + " where " + std::string(name_of(wanted)) +
                   " is expected: it was saved by another kind of object, or by another version of it");
}

std::int64_t State::fitting(bool fits) const {
  if (fits) return integer();
  throw CheckpointError(
      "MU208", "a saved state holds " + std::to_string(integer()) +
                   ", which is too large for the number it is to become: it was saved by another kind of object");
}

bool State::boolean() const { return get<bool>(Kind::boolean); }
std::int64_t State::integer() const { return get<std::int64_t>(Kind::integer); }
double State::number() const {
  return kind() == Kind::integer ? static_cast<double>(integer()) : get<double>(Kind::number);
}
const std::string& State::text() const { return get<std::string>(Kind::text); }
const at::Tensor& State::tensor() const { return get<at::Tensor>(Kind::tensor); }
const State::List& State::list() const { return get<List>(Kind::list); }
State::List& State::list() { return const_cast<List&>(std::as_const(*this).list()); }
const State::Map& State::map() const { return get<Map>(Kind::map); }
State::Map& State::map() { return const_cast<Map&>(std::as_const(*this).map()); }

const State* State::find(std::string_view name) const noexcept {
  const auto* map = std::get_if<Map>(&value_);
  return map ? find_in(*map, name) : nullptr;
}

const State& State::at(std::string_view name) const {
  if (const auto* found = find_in(map(), name)) return *found;
  throw CheckpointError("MU209", "a saved state has no \"" + shown(name) + "\"; it has: " +
                                     listed(map(), [](const auto& entry) { return shown(entry.first); }));
}

State& State::at(std::string_view name) { return const_cast<State&>(std::as_const(*this).at(name)); }

State& State::set(std::string_view name, State value) {
  if (empty()) value_ = Map{};
  if (find_in(map(), name)) return at(name) = std::move(value);
  return map().emplace_back(std::string(name), std::move(value)).second;
}

State clone(const State& state) {
  if (state.kind() == State::Kind::tensor)
    return state.tensor().defined() ? State(state.tensor().detach().clone()) : state;
  if (state.kind() == State::Kind::list) {
    State::List list;
    for (const auto& part : state.list()) list.push_back(clone(part));
    return list;
  }
  if (state.kind() != State::Kind::map) return state;
  State::Map map;
  for (const auto& [name, part] : state.map()) map.emplace_back(name, clone(part));
  return map;
}

bool identical(const State& a, const State& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case State::Kind::none: return true;
    case State::Kind::boolean: return a.boolean() == b.boolean();
    case State::Kind::integer: return a.integer() == b.integer();
    case State::Kind::number: return std::bit_cast<uint64_t>(a.number()) == std::bit_cast<uint64_t>(b.number());
    case State::Kind::text: return a.text() == b.text();
    case State::Kind::tensor: return same_bits(a.tensor(), b.tensor());
    case State::Kind::list: return std::ranges::equal(a.list(), b.list(), identical);
    case State::Kind::map:
      return std::ranges::equal(a.map(), b.map(), [](const auto& x, const auto& y) {
        return x.first == y.first && identical(x.second, y.second);
      });
  }
  return false;
}

}  // namespace muster
