#include "comm/bounded_store.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "muster/base/format.h"

namespace muster::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;
using std::chrono::milliseconds;

}  // namespace

BoundedStore::BoundedStore(c10::intrusive_ptr<c10d::Store> store, std::string place)
    : c10d::Store(store->getTimeout()), store_(std::move(store)), place_(std::move(place)) {}

// Everything that a call uses is copied into it, because a call that is late is left running.
template <class F>
auto BoundedStore::call(F function, milliseconds waits) {
  const std::lock_guard lock(mutex_);
  const auto limit = std::max(waits, timeout_) + kLateAnswer;
  if (!is_silent_) try {
      return call_in_time(limit, [store = store_, function = std::move(function)] { return function(*store); });
    } catch (const LateCall&) {
      is_silent_ = true;
    }
  throw std::runtime_error(formatted(
      "the store at {} has stopped answering: the process that holds it is stopped, or its host is gone", place_));
}

c10::intrusive_ptr<c10d::Store> BoundedStore::clone() {
  return c10::make_intrusive<BoundedStore>(call([](auto& store) { return store.clone(); }), place_);
}

void BoundedStore::set(const std::string& key, const Bytes& value) {
  call([=](auto& store) { store.set(key, value); });
}

Bytes BoundedStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return call([=](auto& store) { return store.compareSet(key, expected, desired); });
}

Bytes BoundedStore::get(const std::string& key) {
  return call([=](auto& store) { return store.get(key); });
}

int64_t BoundedStore::add(const std::string& key, int64_t value) {
  return call([=](auto& store) { return store.add(key, value); });
}

bool BoundedStore::deleteKey(const std::string& key) {
  return call([=](auto& store) { return store.deleteKey(key); });
}

bool BoundedStore::check(const std::vector<std::string>& keys) {
  return call([=](auto& store) { return store.check(keys); });
}

int64_t BoundedStore::getNumKeys() {
  return call([](auto& store) { return store.getNumKeys(); });
}

void BoundedStore::wait(const std::vector<std::string>& keys) {
  call([=](auto& store) { store.wait(keys); });
}

void BoundedStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  call([=](auto& store) { store.wait(keys, timeout); }, timeout);
}

void BoundedStore::setTimeout(const milliseconds& timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
  if (!is_silent_) store_->setTimeout(timeout);
}

void BoundedStore::append(const std::string& key, const Bytes& value) {
  call([=](auto& store) { store.append(key, value); });
}

std::vector<Bytes> BoundedStore::multiGet(const std::vector<std::string>& keys) {
  return call([=](auto& store) { return store.multiGet(keys); });
}

void BoundedStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  call([=](auto& store) { store.multiSet(keys, values); });
}

bool BoundedStore::hasExtendedApi() const { return store_->hasExtendedApi(); }

void BoundedStore::queuePush(const std::string& key, const Bytes& value) {
  call([=](auto& store) { store.queuePush(key, value); });
}

Bytes BoundedStore::queuePop(const std::string& key, bool block) {
  return call([=](auto& store) { return store.queuePop(key, block); });
}

int64_t BoundedStore::queueLen(const std::string& key) {
  return call([=](auto& store) { return store.queueLen(key); });
}

}  // namespace muster::comm
