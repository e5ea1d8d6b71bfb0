#include "track/mlflow_server.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"

namespace muster::track {
namespace {

using muster::testing::thrown;
using muster::testing::thrown_id;

TEST(MlflowServer, CodeCountsMoreThanTheVariable) {
  const Environment variables{{"MLFLOW_TRACKING_URI", "http://there:5000/base/"}};
  EXPECT_EQ(mlflow_server("", variables).uri, "http://there:5000/base");
  EXPECT_EQ(mlflow_server("HTTPS://here", variables).uri, "HTTPS://here");
}

TEST(MlflowServer, AUriWithCredentialsIsTakenApart) {
  const auto server = mlflow_server("https://anna:s%40cret:x@host:5000/p", {{"MLFLOW_TRACKING_TOKEN", "other"}});
  EXPECT_EQ(server.uri, "https://host:5000/p");
  EXPECT_EQ(server.username, "anna");
  EXPECT_EQ(server.password, "s@cret:x");
  EXPECT_EQ(server.token, "");
  EXPECT_EQ(server.secrets.hidden_in("anna:s%40cret:x, s@cret:x, s%40cret:x and YW5uYTpzQGNyZXQ6eA=="),
            "***, ***, *** and ***");
  EXPECT_EQ(without_credentials("https://anna:secret@host/p@q"), "https://host/p@q");
}

TEST(MlflowServer, TakesItsVariables) {
  const auto user = mlflow_server("http://host", {{"MLFLOW_TRACKING_USERNAME", "anna"},
                                                  {"MLFLOW_TRACKING_PASSWORD", "secret"},
                                                  {"MLFLOW_TRACKING_TOKEN", "token"}});
  EXPECT_EQ(user.username + user.password + user.token, "annasecret");
  const auto token = mlflow_server("http://host", {{"MLFLOW_TRACKING_TOKEN", "abc123"},
                                                   {"MLFLOW_TRACKING_INSECURE_TLS", "True"},
                                                   {"MLFLOW_TRACKING_CLIENT_CERT_PATH", "/me.pem"}});
  EXPECT_EQ(token.token, "abc123");
  EXPECT_TRUE(token.insecure_tls);
  EXPECT_EQ(token.client_cert, "/me.pem");
  EXPECT_EQ(token.secrets.hidden_in("Bearer abc123"), "Bearer ***");
  EXPECT_EQ(mlflow_server("http://host", {{"MLFLOW_TRACKING_SERVER_CERT_PATH", "/ca.pem"}}).server_cert, "/ca.pem");
}

TEST(MlflowServer, WhatIsNoServerIsRefusedWithoutItsPassword) {
  for (const auto* uri :
       {"", "sqlite:///runs.db", "./mlruns", "databricks", "postgresql://anna:secret@host/db", "http://anna:secret@",
        "http://anna:secret@host/?token=secret", "http://anna:secret@ho st", "http://anna:secret@:5000", "http:///path",
        "http://anna:x/secret@host", "http://anna:x?secret@host", "postgresql://anna:x/secret@host/db"}) {
    const auto words = thrown([&] { mlflow_server(uri, {}); });
    EXPECT_TRUE(words.starts_with("MU530: ")) << uri << ": " << words;
    EXPECT_EQ(words.find("secret"), std::string::npos) << words;
    EXPECT_NE(words.find("http://"), std::string::npos) << words;
  }
}

TEST(MlflowServer, VariablesThatContradictAreRefused) {
  EXPECT_EQ(thrown_id([] { mlflow_server("http://host", {{"MLFLOW_TRACKING_INSECURE_TLS", "maybe"}}); }), "MU530");
  EXPECT_EQ(thrown_id([] {
              mlflow_server("http://host",
                            {{"MLFLOW_TRACKING_INSECURE_TLS", "1"}, {"MLFLOW_TRACKING_SERVER_CERT_PATH", "/ca.pem"}});
            }),
            "MU530");
}

}  // namespace
}  // namespace muster::track
