#include "comm/handshake.h"

#include <cstring>

#include "base/text.h"

namespace muster::comm {
namespace {

constexpr std::string_view kChallenge = "muster asks";
constexpr std::size_t kNumber = 64;  // digits of an unpredictable number
constexpr std::size_t kPlace = 32;   // offset in bytes of the content after the first word of a frame

Frame frame_of(std::string_view word, std::string_view content) {
  Frame frame{};
  std::memcpy(frame.bytes.data(), word.data(), word.size());
  std::memcpy(frame.bytes.data() + kPlace, content.data(), content.size());
  return frame;
}

std::string_view text_of(const Frame& frame, std::size_t from, std::size_t size) {
  return {reinterpret_cast<const char*>(frame.bytes.data()) + from, size};
}

}  // namespace

Handshake::Handshake(cluster::Secret secret, std::string group, int rank, int size)
    : secret_(std::move(secret)), group_(std::move(group)), rank_(rank),
      challenge_(secret_.is_given() ? random_hex(kNumber / 2) : ""), theirs_(size) {}

Frame Handshake::challenge() const { return has_secret() ? frame_of(kChallenge, challenge_) : Frame{}; }

void Handshake::take_challenge(int peer, const Frame& frame) {
  const bool asked = text_of(frame, 0, kChallenge.size()) == kChallenge;
  if (asked != has_secret())
    throw CommError(
        "MU067",
        formatted(
            "rank {} of group {} has {} secret, but who answers as rank {} has {}. Give all ranks of the job the same "
            "secret, and nobody else",
            rank_, group_, has_secret() ? "the job's" : "no", peer, asked ? "one" : "none"));
  if (asked) theirs_.at(peer) = text_of(frame, kPlace, kNumber);
}

std::string Handshake::signed_from(int from, int to) const {
  const int peer = from == rank_ ? to : from;
  const auto& asked = from == rank_ ? theirs_.at(peer) : challenge_;
  const auto& asking = from == rank_ ? challenge_ : theirs_.at(peer);
  const auto signature =
      cluster::sign(secret_, {"muster rank", group_, std::to_string(from), std::to_string(to), asked, asking});
  return {signature.begin(), signature.end()};
}

Frame Handshake::response(int peer) const { return frame_of("", signed_from(rank_, peer)); }

void Handshake::check_response(int peer, const Frame& frame) const {
  cluster::Signature expected{}, got{};
  const auto own = signed_from(peer, rank_);
  std::copy(own.begin(), own.end(), expected.begin());
  std::memcpy(got.data(), frame.bytes.data() + kPlace, got.size());
  if (!cluster::is_signature(expected, got))
    throw CommError(
        "MU067",
        formatted(
            "who answers rank {} of group {} as rank {} does not have the job's secret: a stranger, or a rank that was "
            "given another one. Give all ranks of the job the same secret, and nobody else",
            rank_, group_, peer));
}

void shake_hands(Transport& transport, const cluster::Secret& secret, const std::string& group,
                 std::chrono::milliseconds timeout) {
  const auto deadline = TimePoint::clock::now() + timeout;
  Handshake handshake(secret, group, transport.rank(), transport.size());
  exchange_frames(
      transport, deadline, [&](int) { return handshake.challenge(); },
      [&](int peer, const Frame& frame) { handshake.take_challenge(peer, frame); });
  if (handshake.has_secret())
    exchange_frames(
        transport, deadline, [&](int peer) { return handshake.response(peer); },
        [&](int peer, const Frame& frame) { handshake.check_response(peer, frame); });
}

}  // namespace muster::comm
