#include "track/curl_library.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"

namespace muster::track {
namespace {

using muster::testing::thrown;

TEST(CurlLibrary, IsRefusedWhereItIsMissingWithTheWayToGetIt) {
  constexpr const char* kNone[] = {"libcurl-of-nobody.so.4", "libcurl-of-none.so.4"};
  const auto words = thrown([&] { load_curl(kNone); });
  EXPECT_TRUE(words.starts_with("MU532: the tracker 'mlflow' needs the library libcurl")) << words;
  EXPECT_NE(words.find("Debian: libcurl4"), std::string::npos) << words;
}

TEST(CurlLibrary, ALibraryWithoutItsFunctionsIsRefused) {
  constexpr const char* kAnother[] = {"libc.so.6"};
  EXPECT_TRUE(thrown([&] { load_curl(kAnother); }).starts_with("MU532: "));
}

TEST(CurlLibrary, IsLoadedOnce) { EXPECT_EQ(&curl(), &curl()); }

}  // namespace
}  // namespace muster::track
