#include "cluster/secret.h"

#include <sys/stat.h>

#include <fstream>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/temporary_folder.h"

namespace muster::cluster {
namespace {

const std::string kGiven = "0123456789abcdef0123456789abcdef";

std::string refusal(const std::function<void()>& body) {
  try {
    body();
    return "none";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

class SecretFile : public ::testing::Test {
 protected:
  SecretFile() : folder_(new_temporary_folder("muster-secret-test")) {}
  ~SecretFile() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& text, mode_t mode) {
    const auto path = folder_ / "secret";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  std::filesystem::path folder_;
};

TEST_F(SecretFile, IsReadWithoutItsNewline) {
  EXPECT_EQ(read_secret_file(write(kGiven + "\n", 0600)).reveal(), kGiven);
  EXPECT_EQ(read_secret({{"MUSTER_SECRET_FILE", (folder_ / "secret").string()}, {"MUSTER_SECRET", kGiven + "other"}})
                .reveal(),
            kGiven);
}

TEST_F(SecretFile, IsRefusedIfOthersMayReadIt) {
  for (const mode_t mode : {0640u, 0604u, 0620u, 0644u}) {
    const auto message = refusal([&] { read_secret_file(write(kGiven, mode)); });
    EXPECT_TRUE(message.starts_with("MU068")) << message;
    EXPECT_EQ(message.find(kGiven), std::string::npos) << message;
  }
}

TEST_F(SecretFile, IsRefusedIfItIsNoneOrEmptyOrShort) {
  for (const auto& path : {folder_, folder_ / "none", write("short\n", 0600)}) {
    const auto message = refusal([&] { read_secret_file(path); });
    EXPECT_TRUE(message.starts_with("MU068")) << message;
    EXPECT_EQ(message.find("short\n"), std::string::npos) << message;
  }
}

TEST(Secret, ComesFromTheVariableOrNotAtAll) {
  EXPECT_FALSE(read_secret({}).is_given());
  EXPECT_EQ(read_secret({{"MUSTER_SECRET", " " + kGiven + "\n"}}).reveal(), kGiven);
  EXPECT_TRUE(refusal([] { read_secret({{"MUSTER_SECRET", "guessable"}}); }).starts_with("MU068"));
}

TEST(Secret, MadeOnesDiffer) {
  EXPECT_EQ(make_secret().reveal().size(), 64u);
  EXPECT_NE(make_secret().reveal(), make_secret().reveal());
}

}  // namespace
}  // namespace muster::cluster
