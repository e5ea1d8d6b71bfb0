#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/stores.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;

const cluster::Secret kStoreSecret(std::string(32, 's'));
const Bytes kStored{1, 2, 3};

struct SignedStores : ::testing::Test {
  c10::intrusive_ptr<c10d::Store> plain = c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<SignedStore>(plain, kStoreSecret);

  std::string refusal(const std::string& key) {
    return testing::thrown([&] { store->get(key); });
  }
};

TEST_F(SignedStores, GiveBackWhatTheyTook) {
  for (const Bytes& value : {kStored, Bytes(), Bytes(5000, 7)}) {
    store->set("a", value);
    EXPECT_EQ(store->get("a"), value);
    EXPECT_TRUE(is_signed(plain->get("a")));
  }
  store->multiSet({"b", "c"}, {{1}, {2}});
  EXPECT_EQ(store->multiGet({"c", "b"}), (std::vector<Bytes>{{2}, {1}}));
  EXPECT_EQ(store->add("count", 2), 2);
  EXPECT_EQ(store->add("count", 3), 5);
  EXPECT_TRUE(store->check({"a", "b"}));
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->check({"a"}));
  store->set("d", kStored);
  EXPECT_EQ(store->clone()->get("d"), kStored);
}

TEST_F(SignedStores, CompareWhatWasSigned) {
  EXPECT_EQ(store->compareSet("a", Bytes(), Bytes{1}), Bytes{1});
  EXPECT_EQ(store->compareSet("a", Bytes{2}, Bytes{3}), Bytes{1});
  EXPECT_EQ(store->compareSet("a", Bytes{1}, Bytes{4}), Bytes{4});
  EXPECT_EQ(store->get("a"), Bytes{4});
  plain->set("a", Bytes{5});
  EXPECT_TRUE(testing::thrown([&] { store->compareSet("a", Bytes{4}, Bytes{6}); }).starts_with("MU067"));
}

TEST_F(SignedStores, RefuseWhatAStrangerWrote) {
  store->set("honest", kStored);
  const auto good = plain->get("honest");
  plain->set("forged", kStored);
  plain->set("empty", Bytes());
  plain->set("moved", good);
  auto cut = good, changed = good;
  cut.pop_back();
  changed.back() ^= 1;
  plain->set("cut", cut);
  plain->set("changed", changed);
  c10::make_intrusive<SignedStore>(plain, cluster::Secret(std::string(32, 'x')))->set("other secret", kStored);
  for (const char* key : {"forged", "empty", "moved", "cut", "changed", "other secret"}) {
    const auto message = refusal(key);
    EXPECT_TRUE(message.starts_with("MU067")) << key << ": " << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_EQ(message.find(kStoreSecret.reveal()), std::string::npos) << message;
    EXPECT_TRUE(testing::thrown([&] { store->multiGet({"honest", key}); }).starts_with("MU067")) << key;
  }
  EXPECT_EQ(store->get("honest"), kStored);
}

TEST_F(SignedStores, SignKeysWithTheirPrefix) {
  c10d::PrefixStore one("1", store), two("2", store);
  one.set("key", kStored);
  plain->set("2/key", plain->get("1/key"));
  EXPECT_EQ(one.get("key"), kStored);
  EXPECT_TRUE(testing::thrown([&] { two.get("key"); }).starts_with("MU067")) << "a value of another group was taken";
}

}  // namespace
}  // namespace muster::comm
