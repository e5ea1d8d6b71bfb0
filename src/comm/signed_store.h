#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cluster/secret.h"

namespace muster::comm {

/// Whether a value was written by a SignedStore.
bool is_signed(const std::vector<std::uint8_t>& value) noexcept;

/// A store whose values carry a signature over key and value, so that a value written without the job's secret is not
/// accepted. Wrap it in prefix stores, not the other way round, so that whole keys are signed.
/// Not covered: counters (add, queueLen, getNumKeys) and whether a key exists (check, wait), with which a stranger can
/// delay a job, but which carry no value; and an older value of the same key. A counter cannot be read by get().
/// Throws, from all functions that return a value: CommError (MU067) if it does not carry the job's signature.
/// Thread safety: that of the store.
/// Why: docs/decisions/0043-who-may-join.md.
class SignedStore final : public c10d::Store {
 public:
  /// Requires: the secret is not empty.
  SignedStore(c10::intrusive_ptr<c10d::Store> store, cluster::Secret secret);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  const std::chrono::milliseconds& getTimeout() const noexcept override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) override;
  void queuePush(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> queuePop(const std::string& key, bool block) override;
  int64_t queueLen(const std::string& key) override;

 private:
  std::vector<std::uint8_t> with_signature(const std::string& key, const std::vector<std::uint8_t>& value) const;
  std::vector<std::uint8_t> checked(const std::string& key, const std::vector<std::uint8_t>& value) const;

  c10::intrusive_ptr<c10d::Store> store_;
  cluster::Secret secret_;
};

}  // namespace muster::comm
