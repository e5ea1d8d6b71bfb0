#include "comm/signed_store.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "cluster/secret.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::string_view kMark = "muster\x1b\x01";
constexpr std::size_t kAdded = kMark.size() + cluster::kSignatureBytes;

std::string_view text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

cluster::Signature signature_of(const cluster::Secret& secret, const std::string& key, std::string_view value) {
  return cluster::sign(secret, {"muster value", key, value});
}

}  // namespace

bool is_signed(const Bytes& value) noexcept { return value.size() >= kAdded && text_of(value).starts_with(kMark); }

SignedStore::SignedStore(c10::intrusive_ptr<c10d::Store> store, cluster::Secret secret)
    : store_(std::move(store)), secret_(std::move(secret)) {}

Bytes SignedStore::with_signature(const std::string& key, const Bytes& value) const {
  const auto signature = signature_of(secret_, key, text_of(value));
  Bytes result;
  result.reserve(kAdded + value.size());
  const auto append = [&](const auto& part) { std::copy(part.begin(), part.end(), std::back_inserter(result)); };
  append(kMark);
  append(signature);
  append(value);
  return result;
}

Bytes SignedStore::checked(const std::string& key, const Bytes& value) const {
  const auto refuse = [&](const char* why) {
    throw CommError(
        "MU067",
        formatted("the value of '{}' in the store {}: somebody without the job's secret wrote it, or ranks were given "
                  "different secrets. Give all ranks of the job the same one, and nobody else",
                  key, why));
  };
  if (!is_signed(value)) refuse("bears no signature");
  const std::span<const std::uint8_t> bytes(value);
  const auto rest = text_of(value).substr(kAdded);
  if (!cluster::is_signature(signature_of(secret_, key, rest), bytes.subspan(kMark.size(), cluster::kSignatureBytes)))
    refuse("bears another signature than this job's");
  return {value.begin() + static_cast<std::ptrdiff_t>(kAdded), value.end()};
}

c10::intrusive_ptr<c10d::Store> SignedStore::clone() {
  return c10::make_intrusive<SignedStore>(store_->clone(), secret_);
}

void SignedStore::set(const std::string& key, const Bytes& value) { store_->set(key, with_signature(key, value)); }

// An empty value stands for a missing key, so it is not signed.
Bytes SignedStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  const auto value = store_->compareSet(key, expected.empty() ? expected : with_signature(key, expected),
                                        with_signature(key, desired));
  return value.empty() ? value : checked(key, value);
}

Bytes SignedStore::get(const std::string& key) { return checked(key, store_->get(key)); }

int64_t SignedStore::add(const std::string& key, int64_t value) { return store_->add(key, value); }

bool SignedStore::deleteKey(const std::string& key) { return store_->deleteKey(key); }

bool SignedStore::check(const std::vector<std::string>& keys) { return store_->check(keys); }

int64_t SignedStore::getNumKeys() { return store_->getNumKeys(); }

void SignedStore::wait(const std::vector<std::string>& keys) { store_->wait(keys); }

void SignedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  store_->wait(keys, timeout);
}

const std::chrono::milliseconds& SignedStore::getTimeout() const noexcept { return store_->getTimeout(); }

void SignedStore::setTimeout(const std::chrono::milliseconds& timeout) { store_->setTimeout(timeout); }

std::vector<Bytes> SignedStore::multiGet(const std::vector<std::string>& keys) {
  auto values = store_->multiGet(keys);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = checked(keys.at(i), values[i]);
  return values;
}

void SignedStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  auto all = values;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = with_signature(keys.at(i), all[i]);
  store_->multiSet(keys, all);
}

void SignedStore::queuePush(const std::string& key, const Bytes& value) {
  store_->queuePush(key, with_signature(key, value));
}

Bytes SignedStore::queuePop(const std::string& key, bool block) { return checked(key, store_->queuePop(key, block)); }

int64_t SignedStore::queueLen(const std::string& key) { return store_->queueLen(key); }

}  // namespace muster::comm
