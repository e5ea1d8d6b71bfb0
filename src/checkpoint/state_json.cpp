#include "checkpoint/state_json.h"

#include <bit>
#include <cmath>

#include "base/text.h"
#include "format/checksum.h"
#include "muster/base/error.h"

namespace muster::checkpoint {
namespace {

using format::Json;
constexpr int kMaxStateDepth = 64;  // limit on the nesting of a state

Json tagged(const char* tag, Json value) { return Json::Map{{tag, std::move(value)}}; }

Json json_at(const State& state, const StoreTensor& store, const std::string& path, int depth) {
  if (depth > kMaxStateDepth)
    throw CheckpointError("MU203",
                          "a state is nested more than " + std::to_string(kMaxStateDepth) + " deep at " + path);
  switch (state.kind()) {
    case State::Kind::none: return {};
    case State::Kind::boolean: return state.boolean();
    case State::Kind::integer: return state.integer();
    case State::Kind::number:
      if (std::isfinite(state.number())) return state.number();
      return tagged("number", format::to_hex(std::bit_cast<std::uint64_t>(state.number())));
    case State::Kind::text: return is_utf8(state.text()) ? Json(state.text()) : tagged("bytes", hex_text(state.text()));
    case State::Kind::tensor:
      return tagged("tensor", state.tensor().defined() ? Json(store(path, state.tensor())) : Json());
    case State::Kind::list: {
      Json::List result;
      for (std::size_t i = 0; i < state.list().size(); ++i)
        result.push_back(json_at(state.list()[i], store, path + "/" + std::to_string(i), depth + 1));
      return result;
    }
    case State::Kind::map: {
      Json::Map result;
      for (const auto& [name, part] : state.map())
        result.emplace_back(escaped(name, false), json_at(part, store, path + "/" + escaped(name, true), depth + 1));
      return tagged("map", std::move(result));
    }
  }
  return {};
}

class StateReader {
 public:
  StateReader(const FindTensor& find, std::string_view file) : find_(find), file_(file) {}

  State operator()(const Json& json) const {
    if (json.is_null()) return {};
    if (const auto* truth = json.get<bool>()) return *truth;
    if (const auto* integer = json.get<std::int64_t>()) return *integer;
    if (const auto* number = json.get<double>()) return *number;
    if (const auto* text = json.get<std::string>()) return *text;
    if (const auto* list = json.get<Json::List>()) {
      State::List states;
      for (const Json& item : *list) states.push_back((*this)(item));
      return states;
    }
    return tagged(*json.get<Json::Map>());
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw CheckpointError(
        "MU213", std::string(file_) + ": a state in it " + what + "; the file was edited or is none of Muster's");
  }

  State tagged(const Json::Map& map) const {
    if (map.size() != 1) refuse("has a table that is not marked by one word");
    const auto& [tag, value] = map.front();
    if (tag == "map") return named(value);
    if (tag == "tensor" && value.is_null()) return at::Tensor();
    const auto* text = value.get<std::string>();
    if (tag == "tensor" && text) return find_(*text);
    if (tag == "bytes" && text) return hexadecimal(bytes_of_hex(*text));
    if (const auto bits = tag == "number" && text ? format::from_hex(*text) : std::nullopt)
      return std::bit_cast<double>(*bits);
    refuse("has a table marked " + in_quotes(tag) + " that cannot be understood");
  }

  State named(const Json& value) const {
    const auto* map = value.get<Json::Map>();
    if (!map) refuse("has a \"map\" that is not a table");
    State::Map states;
    for (const auto& [name, item] : *map) states.emplace_back(hexadecimal(format::unescaped(name)), (*this)(item));
    try {
      return states;
    } catch (const CheckpointError& error) {
      refuse(error.what());
    }
  }

  std::string hexadecimal(std::optional<std::string> bytes) const {
    if (!bytes) refuse("has bytes that are not hexadecimal");
    return *std::move(bytes);
  }

  const FindTensor& find_;
  std::string_view file_;
};

}  // namespace

std::string escaped(std::string_view text, bool in_path) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    while (length < 4 && !is_utf8(text.substr(i, length))) ++length;
    const std::string_view character = text.substr(i, length);
    const bool is_plain = is_utf8(character) && character != "%" && !(in_path && character == "/");
    if (is_plain) result += character;
    else result += '%' + hex_text(text.substr(i, 1));
    i += is_plain ? character.size() : 1;
  }
  return result;
}

Json json_of(const State& state, const StoreTensor& store, const std::string& root) {
  return json_at(state, store, root, 0);
}

State state_of(const Json& json, const FindTensor& find, std::string_view file) {
  return StateReader(find, file)(json);
}

}  // namespace muster::checkpoint
