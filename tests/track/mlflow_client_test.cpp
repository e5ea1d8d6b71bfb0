#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fake_mlflow.h"
#include "run_files.h"
#include "track/mlflow_delivery.h"
#include "track/mlflow_server.h"

namespace muster::track {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class MlflowClientTest : public WithCurl {
 protected:
  MlflowClient client(const Environment& variables = {}) {
    return {mlflow_server(server_.uri(), variables), 5s, &stop_};
  }
  /// What a call says that the server answers so.
  std::string said(const FakeReply& reply, const Environment& variables = {}) {
    fake_.set_answer([=](const FakeRequest&) { return reply; });
    try {
      client(variables).experiment("digits");
      return "nothing";
    } catch (const MlflowError& error) {
      return error.what();
    }
  }

  std::atomic<bool> stop_{false};
  FakeMlflow fake_;
  FakeServer server_ = fake_.start();
};

TEST_F(MlflowClientTest, FindsOrMakesTheExperiment) {
  EXPECT_EQ(client().experiment("digits"), "7");
  EXPECT_EQ(fake_.count("experiments/create"), 0);
  EXPECT_EQ(client().experiment("a new/one"), "8");
  EXPECT_EQ(fake_.requests().back().body, R"({"name":"a new/one"})");
  EXPECT_EQ(fake_.count("experiment_name=a%20new%2Fone"), 1);
}

TEST_F(MlflowClientTest, AnotherProgramMayMakeTheExperimentFirst) {
  int looked = 0;
  fake_.set_answer([&](const FakeRequest& request) -> std::optional<FakeReply> {
    if (request.path.ends_with("experiments/create"))
      return FakeReply{.body = R"({"error_code":"RESOURCE_ALREADY_EXISTS"})", .status = 400};
    if (looked++ == 0) return FakeReply{.body = R"({"error_code":"RESOURCE_DOES_NOT_EXIST"})", .status = 404};
    return std::nullopt;
  });
  EXPECT_EQ(client().experiment("digits"), "7");
}

TEST_F(MlflowClientTest, MakesAndFindsARun) {
  EXPECT_EQ(client().find_run("7", "muster.run", "k").run_id, "");
  const auto made =
      client().create_run({.experiment_id = "7", .run_name = "n", .start_time = 5, .tags = {{"muster.run", "k"}}});
  EXPECT_EQ(made.run_id + made.experiment_id + made.artifact_uri, "r07mlflow-artifacts:/7/r0/artifacts");
  EXPECT_EQ(fake_.runs.at(0), json::parse(R"({"experiment_id":"7","run_name":"n","start_time":5,
                                              "tags":[{"key":"muster.run","value":"k"}]})"));
  EXPECT_EQ(client().find_run("7", "muster.run", "k").run_id, "r0");
  EXPECT_EQ(client().get_run("r0").run_id, "r0");
}

TEST_F(MlflowClientTest, SendsWhoAsks) {
  const auto header = [&](const Environment& variables) {
    client(variables).experiment("digits");
    const auto headers = fake_.requests().back().headers;
    const auto at = headers.find("Authorization: ");
    return at == std::string::npos ? "" : headers.substr(at, headers.find("\r\n", at) - at);
  };
  EXPECT_EQ(header({}), "");
  EXPECT_EQ(header({{"MLFLOW_TRACKING_USERNAME", "anna"}, {"MLFLOW_TRACKING_PASSWORD", "secret"}}),
            "Authorization: Basic YW5uYTpzZWNyZXQ=");
  EXPECT_EQ(header({{"MLFLOW_TRACKING_TOKEN", "abc"}}), "Authorization: Bearer abc");
}

TEST_F(MlflowClientTest, SaysWhatTheServerSays) {
  EXPECT_EQ(said({.body = R"({"error_code":"X","message":"no room"})", .status = 500}), "HTTP 500: no room");
  EXPECT_EQ(said({.body = "<html>", .status = 502}), "HTTP 502");
  EXPECT_NE(said({.status = 401}).find("MLFLOW_TRACKING_TOKEN"), std::string::npos);
  EXPECT_NE(said({.status = 302}).find("give the URI"), std::string::npos);
  for (const auto* body : {"<html>hello</html>", "[]", "7", "", "{}", R"({"experiment":7})", R"({"experiment":{}})",
                           R"({"experiment":{"experiment_id":7}})"})
    EXPECT_EQ(said({.body = body}), "it answers with what is not a reply of MLflow") << body;
  EXPECT_NE(said({.drop = true}), "nothing");
}

TEST_F(MlflowClientTest, ShowsNoKey) {
  const Environment variables{{"MLFLOW_TRACKING_USERNAME", "anna"}, {"MLFLOW_TRACKING_PASSWORD", "secret"}};
  EXPECT_EQ(said({.body = R"({"message":"bad: anna secret YW5uYTpzZWNyZXQ="})", .status = 500}, variables),
            "HTTP 500: bad: anna *** ***");
}

TEST_F(MlflowClientTest, ARequestEndsAtItsTimeOutOrAStop) {
  fake_.set_answer([](const FakeRequest&) { return FakeReply{.hang = true}; });
  MlflowClient quick(mlflow_server(server_.uri(), {}), 50ms, &stop_);
  EXPECT_THROW(quick.experiment("digits"), MlflowError);
  stop_ = true;
  MlflowClient slow(mlflow_server(server_.uri(), {}), 1h, &stop_);
  EXPECT_THROW(slow.experiment("digits"), MlflowError);
}

TEST_F(MlflowClientTest, ARefusalIsNoOutage) {
  EXPECT_TRUE(MlflowError("", 400).is_refusal());
  EXPECT_TRUE(MlflowError("", 413).is_refusal());
  for (const long status : {0, 200, 401, 404, 429, 500, 503}) EXPECT_FALSE(MlflowError("", status).is_refusal());
}

TEST_F(MlflowClientTest, AsksWhetherAMetricIsThere) {
  const json metric{{"key", "loss"}, {"step", 3}, {"timestamp", 1500}, {"value", 0.5}};
  auto later = metric;
  later["step"] = 4;
  EXPECT_FALSE(client().has_metric("r0", metric));
  client().log_batch("r0", "metrics", json::array({metric}));
  EXPECT_TRUE(client().has_metric("r0", metric));
  EXPECT_FALSE(client().has_metric("r0", later));
  fake_.metrics[0]["step"] = "3";  // as some servers write 64 bits
  EXPECT_TRUE(client().has_metric("r0", metric));
}

TEST_F(MlflowClientTest, PutsFiles) {
  ScratchFolder folder;
  const std::string bytes(200000, '\0');
  write_text(folder / "a", bytes);
  EXPECT_TRUE(client().takes_artifacts("mlflow-artifacts:/7/r0/artifacts"));
  client().put_artifact("mlflow-artifacts:/7/r0/artifacts", "plots/a b", folder / "a");
  EXPECT_EQ(fake_.files.at("7/r0/artifacts/plots/a%20b"), bytes);
  for (const auto* uri : {"s3://bucket/7", "/data/7", "file:///data", "mlflow-artifacts://elsewhere:5000/7", ""})
    EXPECT_FALSE(client().takes_artifacts(uri)) << uri;
  EXPECT_THROW(client().put_artifact("mlflow-artifacts:/7", "b", folder / "none"), MlflowError);
}

}  // namespace
}  // namespace muster::track
