// How ranks that share memory get more of it, for tensors: over the links that they have.
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "comm/shared_memory/process_areas.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

/// None if the system refuses.
template <class Make>
Segment attempt(Make make) {
  try {
    return make();
  } catch (const std::runtime_error&) {
    return {};
  }
}

}  // namespace

std::shared_ptr<SharedBuffer> ProcessAreas::allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                            TimePoint deadline) {
  const std::string name = formatted("buffer {}", number);
  auto memory = std::make_shared<std::vector<Segment>>(peers_.size());
  Segment& own = memory->at(rank());
  own = attempt([&] { return Segment::make(bytes, access); });
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) offer_buffer(peer, name, own, deadline);
  std::vector<Descriptor> files(peers_.size());
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) files[peer] = take_buffer(peer, name, deadline);
  files[rank()] = own.take_descriptor();
  auto buffer = std::make_shared<SharedBuffer>(SharedBuffer{number, bytes, access});
  if (access == PeerAccess::read_contiguous) {
    memory->push_back(attempt([&] { return Segment::map_contiguous(files, bytes); }));
    buffer->row = memory->back().data();
  }
  bool whole = access != PeerAccess::read_contiguous || buffer->row;
  for (int peer = 0; peer < size(); ++peer) {
    Segment& part = memory->at(peer);
    if (peer != rank() && !buffer->row) part = attempt([&] { return Segment::map(files[peer], bytes, access); });
    buffer->parts.push_back(buffer->row && peer != rank() ? buffer->row + bytes * peer : part.data());
    whole = whole && buffer->parts.back();
  }
  if (!whole) return nullptr;
  buffer->keeps = std::move(memory);
  return buffer;
}

void ProcessAreas::offer_buffer(int peer, const std::string& name, const Segment& own, TimePoint deadline) {
  // Wakes that nobody read leave a peer no room for its offer.
  drain(peers_[peer]);
  try {
    if (own.data()) peers_[peer].link.send(name, {own.descriptor().get()}, deadline);
    else peers_[peer].link.send(refusal_of(name), {}, deadline);
  } catch (const std::runtime_error& failure) {
    throw lost(peer, deadline, failure);
  }
}

Descriptor ProcessAreas::take_buffer(int peer, const std::string& name, TimePoint deadline) {
  LinkMessage message;
  try {
    message = next_message(peer, name, deadline);
  } catch (const std::runtime_error& failure) {
    throw lost(peer, deadline, failure);
  }
  if (message.text != name || message.descriptors.size() != 1) return {};
  return std::move(message.descriptors[0]);
}

TransportFailure ProcessAreas::lost(int peer, TimePoint deadline, const std::runtime_error& failure) {
  const bool late = TimePoint::clock::now() >= deadline;
  return {late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer, failure.what()};
}

}  // namespace muster::comm
