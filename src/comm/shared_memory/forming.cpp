// How ranks that share memory form further groups: over the links that they have.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "comm/error_text.h"
#include "comm/rank_index.h"
#include "comm/shared_memory/process_areas.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr const char* kReady = "ready";

void expect_descriptors(const LinkMessage& message, std::size_t count) {
  if (message.descriptors.size() != count) throw std::runtime_error("this process can open no more files");
}

}  // namespace

std::unique_ptr<SharedAreas> ProcessAreas::split(const std::vector<int>& ranks, const std::string& name) {
  const auto new_rank = rank_index(ranks, rank());
  Forming forming{ranks, name, TimePoint::clock::now() + timeout_, new_rank, new_rank + 1};
  try {
    return form(forming);
  } catch (const std::exception& failure) {
    refuse(forming);
    throw CommError("MU401",
                    formatted("the ranks of group {} on one host could not share memory: {}. Is there memory left in "
                              "the container, and room for open files (ulimit -n)? The backend gloo does without "
                              "shared memory.",
                              name, short_error_text(failure.what())));
  }
}

std::unique_ptr<SharedAreas> ProcessAreas::form(Forming& forming) {
  const auto count = static_cast<int>(forming.ranks.size());
  // Wakes that nobody read leave a peer no room for its offer.
  for (const int member : forming.ranks)
    if (member != rank()) drain(peers_[member]);
  OwnArea own(count);
  std::vector<Neighbour> members(forming.ranks.size());
  for (; forming.offered < count; ++forming.offered)
    members[forming.offered] = offer(forming, forming.offered, own.memory);
  while (forming.heard < forming.new_rank) {
    const int member = forming.heard;
    members[member] = take_offer(forming, member, own.memory);
  }
  for (int member = forming.new_rank + 1; member < count; ++member) expect_reply(forming, members[member]);
  // A pair of sockets names the process that made it at both ends, so that it cannot say whom to watch.
  for (int member = 0; member < count; ++member) members[member].process = peers_[forming.ranks[member]].process;
  confirm(forming, members);
  return std::make_unique<ProcessAreas>(forming.new_rank, std::move(own), std::move(members), timeout_);
}

Neighbour ProcessAreas::offer(const Forming& forming, int member, const Segment& own) {
  auto [link, theirs] = Link::make_pair();
  peers_[forming.ranks[member]].link.send(forming.name, {theirs.get(), own.descriptor().get()}, forming.deadline);
  Neighbour neighbour;
  neighbour.link = std::move(link);
  return neighbour;
}

Neighbour ProcessAreas::take_offer(Forming& forming, int member, const Segment& own) {
  LinkMessage message = next_message(forming.ranks[member], forming.name, forming.deadline);
  ++forming.heard;
  if (message.text != forming.name) throw std::runtime_error(formatted("rank {} of the group could not", member));
  expect_descriptors(message, 2);
  Neighbour neighbour;
  neighbour.link = Link(std::move(message.descriptors[0]));
  neighbour.memory = Segment::map(message.descriptors[1], AreaLayout(static_cast<int>(forming.ranks.size())).bytes());
  neighbour.link.send(forming.name, {own.descriptor().get()}, forming.deadline);
  return neighbour;
}

void ProcessAreas::expect_reply(const Forming& forming, Neighbour& member) {
  const LinkMessage reply = member.link.recv(forming.deadline);
  expect_descriptors(reply, 1);
  member.memory = Segment::map(reply.descriptors[0], AreaLayout(static_cast<int>(forming.ranks.size())).bytes());
}

/// No member has the group unless all can have it.
void ProcessAreas::confirm(const Forming& forming, const std::vector<Neighbour>& members) {
  for (const auto& member : members)
    if (member.link.descriptor() >= 0) member.link.send(kReady, {}, forming.deadline);
  for (const auto& member : members)
    if (member.link.descriptor() >= 0 && member.link.recv(forming.deadline).text != kReady)
      throw std::runtime_error("the ranks form other groups");
}

void ProcessAreas::refuse(Forming& forming) noexcept {
  const auto deadline = std::min(forming.deadline, TimePoint::clock::now() + std::chrono::seconds(5));
  for (int member = 0; member < static_cast<int>(forming.ranks.size()); ++member) {
    try {
      // Those whose offer was read, or who have one of this rank, see that the other end is closed.
      if (member >= forming.offered) peers_[forming.ranks[member]].link.send(refusal_of(forming.name), {}, deadline);
      else if (member >= forming.heard && member < forming.new_rank)
        next_message(forming.ranks[member], forming.name, deadline);
    } catch (const std::exception&) {
      // That rank is gone, and so waits for nobody.
    }
  }
}

LinkMessage ProcessAreas::next_message(int peer, const std::string& name, TimePoint deadline) {
  Neighbour& from = peers_[peer];
  for (;;) {
    LinkMessage message;
    if (from.messages.empty()) {
      message = from.link.recv(deadline);
    } else {
      message = std::move(from.messages.front());
      from.messages.pop_front();
    }
    if (message.text == name || message.text == refusal_of(name)) return message;
  }
}

}  // namespace muster::comm
