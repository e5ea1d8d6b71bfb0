#pragma once

#include <chrono>
#include <memory>
#include <type_traits>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/descriptor.h"
#include "cluster/secret.h"
#include "muster/cluster/cluster.h"

/// The stores in which ranks rendezvous: at an address, or in a file, and signed if the job has a secret.
namespace muster::comm {

/// The store at the cluster's address. Rank 0 runs its server, unless another process does: on the launcher's socket,
/// or on its own socket at the address that where_to_listen() gives. Groups of one process share the server. Each call
/// of the store is bounded (BoundedStore), at first by what is left of `timeout`.
/// Throws: std::runtime_error if rank 0 cannot listen, or if no store answers within `timeout`; it says what was found
/// at the address instead.
c10::intrusive_ptr<c10d::Store> open_tcp_store(const ClusterEnvironment& cluster, std::chrono::milliseconds timeout);

/// On the main rank: logs one warning if other hosts can reach the store. The warning says which processes are
/// admitted.
void say_who_may_join(const ClusterEnvironment& cluster, bool has_secret);

/// A rendezvous file. The last of the ranks that used it removes it, however many groups were formed with it. If no
/// rank that wrote to it is alive, the next rank that joins clears the file.
class StoreFile {
 public:
  /// Joins at cluster.store_path; a path without a folder is in private_folder().
  /// Throws: CommError (MU058) if the file cannot be made or its lock does not come in time, (MU069) if it does not
  /// belong to this user; what private_folder() and the store throw.
  StoreFile(const ClusterEnvironment& cluster, double timeout_seconds);
  /// Leaves. Waits a few seconds at most for ranks that join or leave, and does not remove the file if that is not
  /// enough.
  /// Requires: nobody else uses store() any more.
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  /// The store with the keys of the whole file.
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// The number of times that this rank has joined, including this time.
  int64_t turn() const noexcept { return turn_; }

 private:
  std::filesystem::path lock_path() const { return path_.string() + ".lock"; }
  std::filesystem::path users_path() const { return path_.string() + ".users"; }

  std::filesystem::path path_;
  /// Holds a shared lock while the rank uses the store. The store itself locks its own file in each call.
  Descriptor users_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t turn_ = 0;
};

/// A store that hands every call on to another one. A store derived from it overrides the calls that it changes, or
/// run(), by which all others are made.
class ForwardingStore : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  explicit ForwardingStore(c10::intrusive_ptr<c10d::Store> store)
      : c10d::Store(store->getTimeout()), store_(std::move(store)) {}

  using c10d::Store::set;
  void set(const std::string& key, const Bytes& value) override {
    call([=](auto& store) { store.set(key, value); });
  }
  using c10d::Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return call([=](auto& store) { return store.compareSet(key, expected, desired); });
  }
  Bytes get(const std::string& key) override {
    return call([=](auto& store) { return store.get(key); });
  }
  int64_t add(const std::string& key, int64_t value) override {
    return call([=](auto& store) { return store.add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return call([=](auto& store) { return store.deleteKey(key); });
  }
  bool check(const std::vector<std::string>& keys) override {
    return call([=](auto& store) { return store.check(keys); });
  }
  int64_t getNumKeys() override {
    return call([](auto& store) { return store.getNumKeys(); });
  }
  void wait(const std::vector<std::string>& keys) override {
    call([=](auto& store) { store.wait(keys); });
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    call([=](auto& store) { store.wait(keys, timeout); }, timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { store_->setTimeout(timeout); }
  void append(const std::string& key, const Bytes& value) override {
    call([=](auto& store) { store.append(key, value); });
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    return call([=](auto& store) { return store.multiGet(keys); });
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    call([=](auto& store) { store.multiSet(keys, values); });
  }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }
  void queuePush(const std::string& key, const Bytes& value) override {
    call([=](auto& store) { store.queuePush(key, value); });
  }
  Bytes queuePop(const std::string& key, bool block) override {
    return call([=](auto& store) { return store.queuePop(key, block); });
  }
  int64_t queueLen(const std::string& key) override {
    return call([=](auto& store) { return store.queueLen(key); });
  }

 protected:
  /// Calls `function`, which owns everything that it uses, with the store. `waits`: a timeout that the call itself has.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides hand it to another thread
  virtual void run(std::function<void(c10d::Store&)> function, [[maybe_unused]] std::chrono::milliseconds waits) {
    function(*store_);
  }

  /// Returns what `function` returns when run() calls it. It must own everything that it uses.
  template <class F>
  std::invoke_result_t<F, c10d::Store&> call(F function, std::chrono::milliseconds waits = {}) {
    using Result = std::invoke_result_t<F, c10d::Store&>;
    if constexpr (std::is_void_v<Result>) {
      run(std::move(function), waits);
    } else {
      const auto result = std::make_shared<std::optional<Result>>();  // shared, since run() may leave the call running
      run([=](c10d::Store& store) { *result = function(store); }, waits);
      return std::move(**result);
    }
  }

  const c10::intrusive_ptr<c10d::Store> store_;
};

/// Whether a value was written by a SignedStore.
bool is_signed(const std::vector<std::uint8_t>& value) noexcept;

/// A store whose values carry a signature over key and value, so that a value written without the job's secret is not
/// accepted. Wrap it in prefix stores, not the other way round, so that whole keys are signed.
/// Not covered: counters (add, queueLen, getNumKeys) and whether a key exists (check, wait), with which a stranger can
/// delay a job, but which carry no value; and an older value of the same key. A counter cannot be read by get().
/// Throws, from all functions that return a value: CommError (MU067) if it does not carry the job's signature.
/// Thread safety: that of the store.
/// Why: docs/decisions/0043-who-may-join.md.
class SignedStore final : public ForwardingStore {
 public:
  /// Requires: the secret is not empty.
  SignedStore(c10::intrusive_ptr<c10d::Store> store, cluster::Secret secret)
      : ForwardingStore(std::move(store)), secret_(std::move(secret)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<SignedStore>(store_->clone(), secret_);
  }
  using c10d::Store::set;
  void set(const std::string& key, const Bytes& value) override { store_->set(key, with_signature(key, value)); }
  using c10d::Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override { return checked(key, store_->get(key)); }
  // A signature covers a whole value, so c10d's own append() is used, which sets it as a whole.
  // NOLINTNEXTLINE(bugprone-parent-virtual-call)
  void append(const std::string& key, const Bytes& value) override { c10d::Store::append(key, value); }
  bool hasExtendedApi() const override { return false; }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override;
  void queuePush(const std::string& key, const Bytes& value) override {
    store_->queuePush(key, with_signature(key, value));
  }
  Bytes queuePop(const std::string& key, bool block) override { return checked(key, store_->queuePop(key, block)); }

 private:
  Bytes with_signature(const std::string& key, const Bytes& value) const;
  Bytes checked(const std::string& key, const Bytes& value) const;

  cluster::Secret secret_;
};

}  // namespace muster::comm
