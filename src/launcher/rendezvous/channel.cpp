#include "launcher/rendezvous/channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "base/text.h"

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

namespace {

/// The first words of each end, followed by its random number.
constexpr std::string_view kHandshake = "muster rendezvous 1 ";
static_assert(kHandshake.starts_with(kRendezvousWords));
constexpr std::size_t kNumberBytes = 16, kNumberDigits = 2 * kNumberBytes;
constexpr std::size_t kSizeBytes = 4;  // size of a message's length field in bytes

}  // namespace

Channel::Channel(Descriptor socket, Side side, cluster::Secret secret)
    : own_number_(random_hex(kNumberBytes)), secret_(std::move(secret)), side_(side), socket_(std::move(socket)) {
  output_.append(kHandshake).append(own_number_);
  // Send each message at once, without waiting for the acknowledgement of the previous one. Unix sockets lack the
  // option.
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

cluster::Signature Channel::signature_of(bool sent, std::uint64_t number, std::string_view message) const {
  const bool from_node = sent == (side_ == Side::node);
  const auto& of_node = side_ == Side::node ? own_number_ : other_number_;
  const auto& of_rendezvous = side_ == Side::node ? other_number_ : own_number_;
  return cluster::sign(secret_, {"muster rendezvous", from_node ? "node" : "rendezvous", of_node, of_rendezvous,
                                 std::to_string(number), message});
}

void Channel::send(std::string_view message) {
  waiting_.emplace_back(message);
  sign_waiting();
}

void Channel::sign_waiting() {
  if (other_number_.empty()) return;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const auto& message = waiting_.front();
    const auto signature = signature_of(true, sent_++, message);
    for (int shift = 24; shift >= 0; shift -= 8) output_ += static_cast<char>(message.size() >> shift);
    output_.append(message).append(signature.begin(), signature.end());
  }
}

void Channel::exchange() {
  if (state_ == State::open) read_some();
  flush();
}

void Channel::read_some() {
  char bytes[1 << 14];
  // Flow control of the connection slows down a sender that is faster than this end.
  while (input_.size() < 2 * kMostBytes) {
    const ssize_t size = recv(socket_.get(), bytes, sizeof bytes, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) {
      state_ = State::closed;
      return;
    }
    input_.append(bytes, static_cast<std::size_t>(size));
  }
}

void Channel::flush() {
  while (!output_.empty()) {
    const ssize_t size = ::send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL);
    // Messages that the other end sent before it closed are still read.
    if (size < 0 && errno != EAGAIN && errno != EINTR) output_.clear();
    if (size <= 0) return;
    output_.erase(0, static_cast<std::size_t>(size));
  }
}

/// Whether the other end's first words have arrived.
bool Channel::opened() {
  if (!other_number_.empty()) return true;
  const auto known = std::min(input_.size(), kHandshake.size());
  if (input_.compare(0, known, kHandshake, 0, known) != 0) state_ = State::stranger;
  if (state_ == State::stranger || input_.size() < kHandshake.size() + kNumberDigits) return false;
  other_number_ = input_.substr(kHandshake.size(), kNumberDigits);
  input_.erase(0, kHandshake.size() + kNumberDigits);
  sign_waiting();
  flush();
  return true;
}

std::optional<std::string> Channel::receive() {
  if (state_ == State::stranger || state_ == State::forged || !opened() || input_.size() < kSizeBytes)
    return std::nullopt;
  std::size_t size = 0;
  for (std::size_t i = 0; i < kSizeBytes; ++i) size = size << 8 | static_cast<unsigned char>(input_[i]);
  if (size > kMostBytes) {
    state_ = is_trusted() ? State::forged : State::stranger;
    return std::nullopt;
  }
  const auto end = kSizeBytes + size + cluster::kSignatureBytes;
  if (input_.size() < end) return std::nullopt;
  auto message = input_.substr(kSizeBytes, size);
  const auto* got = reinterpret_cast<const std::uint8_t*>(input_.data()) + kSizeBytes + size;
  const auto expected = signature_of(false, received_, message);
  if (!cluster::is_signature(expected, std::span(got, cluster::kSignatureBytes))) {
    state_ = State::forged;
    return std::nullopt;
  }
  input_.erase(0, end);
  ++received_;
  heard_ = Clock::now();
  return message;
}

bool Channel::wind_down() {
  flush();
  if (!output_.empty()) return false;
  if (!std::exchange(winds_down_, true)) shutdown(socket_.get(), SHUT_WR);
  char discarded[1 << 14];
  ssize_t size;
  do size = recv(socket_.get(), discarded, sizeof discarded, 0);
  while (size > 0);
  return size == 0 || (errno != EAGAIN && errno != EINTR);
}

pollfd Channel::entry() const noexcept {
  const bool reads = winds_down_ || (state_ == State::open && input_.size() < 2 * kMostBytes);
  const auto events = static_cast<short>((reads ? POLLIN : 0) | (output_.empty() ? 0 : POLLOUT));
  // Without events, the end of the connection would still wake poll() repeatedly.
  return {events == 0 ? -1 : socket_.get(), events, 0};
}

}  // namespace muster::launcher
