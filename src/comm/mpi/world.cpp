#include "comm/mpi/world.h"

#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm::mpi {
namespace {

struct Kept {
  std::mutex mutex;
  std::vector<std::shared_ptr<const void>> memory;
};

/// What MPI may use until the process ends.
Kept& kept() {
  static auto* const all = new Kept;
  return *all;
}

}  // namespace

World::World(Calls& calls, Handle duplicate) : calls_(calls), communicator_(duplicate) {
  if (const int code = calls.rank_and_size(duplicate, rank_, size_)) throw CommError("MU557", calls.error_string(code));
  tag_bound_ = calls.tag_bound();
}

World::~World() {
  // After a failure messages may be under way in it.
  if (!failed_) calls_.free(communicator_);
}

void World::fail() noexcept {
  failed_ = true;
  calls_.fail();
}

int World::first_tag(int64_t number, int first_rank) const {
  const int64_t tag = (number * size_ + first_rank) * kinds;
  if (tag + kinds - 1 > tag_bound_)
    throw CommError("MU557", formatted("MPI has {} tags, which are used up by {} groups of ranks; keep groups instead "
                                       "of making them anew",
                                       tag_bound_, number));
  return static_cast<int>(tag);
}

void World::keep(std::shared_ptr<const void> memory) {
  failed_ = true;
  std::lock_guard lock(kept().mutex);
  kept().memory.push_back(std::move(memory));
}

void World::add(Member* member) {
  std::lock_guard lock(mutex_);
  members_.insert(member);
}

void World::remove(Member* member) {
  std::lock_guard lock(mutex_);
  members_.erase(member);
}

void World::leave() {
  std::lock_guard lock(mutex_);
  if (members_.empty()) return;
  for (auto* member : members_) member->end("MPI has ended on this rank");
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) calls_.notify(rank, notices, communicator_);
}

bool World::has_left(int rank) const {
  bool there = false;
  return calls_.probe(rank, notices, communicator_, there) == 0 && there;
}

}  // namespace muster::comm::mpi
