#include <cstdio>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "cluster/secret.h"

namespace muster::cluster {
namespace {

const Secret kSigner("0123456789abcdef0123456789abcdef");

std::string hex(const Signature& signature) {
  std::string text;
  for (const auto byte : signature) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

TEST(Signature, IsTheHmacOfPartsWithTheirLengths) {
  // As Python's hmac has it, of struct.pack(">Q", len(part)) + part for each.
  EXPECT_EQ(hex(sign(kSigner, {"muster value", "key", "value"})),
            "d61980005f8db549c3fa6de9da5d2ffdbe0314a964ac8be0dcbfdce1cf647c6f");
}

TEST(Signature, BindsEveryPartItsPlaceAndTheSecret) {
  std::set<std::string> all;
  for (const auto& signature :
       {sign(kSigner, {"a", "bc"}), sign(kSigner, {"ab", "c"}), sign(kSigner, {"abc"}), sign(kSigner, {"bc", "a"}),
        sign(kSigner, {"a", "bc", ""}), sign(Secret(std::string(32, 'x')), {"a", "bc"})})
    all.insert(hex(signature));
  EXPECT_EQ(all.size(), 6u);
}

TEST(Signature, IsComparedWhole) {
  auto signature = sign(kSigner, {"a"});
  auto other = signature;
  EXPECT_TRUE(is_signature(signature, other));
  other.back() ^= 1;
  EXPECT_FALSE(is_signature(signature, other));
  EXPECT_FALSE(is_signature(signature, std::span(signature).first(31)));
}

}  // namespace
}  // namespace muster::cluster
