#include "launcher/rendezvous/message.h"

#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace muster::launcher {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchConfig, command, digest, max_restarts, nodes, processes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Join, host, node_rank, config)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failed, code, secondary, what)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ended, made_steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Left, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Stop, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StartRound, main_address, main_port, name, node_rank, nodes, restarts, start)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EndRound, secondary, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Note, line)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finish, code, id, lines)

namespace {

template <class Variant>
std::string encoded(const Variant& message) {
  return std::visit(
      [&](const auto& value) {
        json body = json::object();
        if constexpr (!std::is_empty_v<std::decay_t<decltype(value)>>) body = value;
        // A line of a program's output may contain arbitrary bytes.
        return json{{"body", body}, {"kind", message.index()}}.dump(-1, ' ', false, json::error_handler_t::replace);
      },
      message);
}

template <class Variant, std::size_t I = 0>
Variant made(std::size_t kind, const json& body) {
  if constexpr (I == std::variant_size_v<Variant>) {
    throw std::invalid_argument("a message of an unknown kind");
  } else {
    if (kind != I) return made<Variant, I + 1>(kind, body);
    std::variant_alternative_t<I, Variant> value{};
    if constexpr (!std::is_empty_v<decltype(value)>) body.get_to(value);
    return value;
  }
}

template <class Variant>
Variant decoded(const std::string& text) {
  const auto message = json::parse(text);
  return made<Variant>(message.at("kind").get<std::size_t>(), message.at("body"));
}

}  // namespace

std::string encode(const NodeMessage& message) { return encoded(message); }
std::string encode(const RendezvousMessage& message) { return encoded(message); }
NodeMessage decode_node_message(const std::string& text) { return decoded<NodeMessage>(text); }
RendezvousMessage decode_rendezvous_message(const std::string& text) { return decoded<RendezvousMessage>(text); }

}  // namespace muster::launcher
