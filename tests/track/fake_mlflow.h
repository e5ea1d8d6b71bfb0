#pragma once

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fake_server.h"
#include "muster/base/error.h"
#include "track/http.h"

namespace muster::track {

/// As much of an MLflow server as a run needs, with one experiment, digits. A function may answer in its place.
class FakeMlflow {
 public:
  using Answer = std::function<std::optional<FakeReply>(const FakeRequest& request)>;

  FakeReply operator()(const FakeRequest& request) {
    std::lock_guard lock(mutex_);
    requests_.push_back(request);
    if (instead_)
      if (auto reply = instead_(request)) return *reply;
    return answer(request);
  }
  /// What answers from now on.
  void set_answer(Answer instead) {
    std::lock_guard lock(mutex_);
    instead_ = std::move(instead);
  }
  /// The server that asks this; on the port of an earlier one if given.
  FakeServer start(int port = 0) {
    return FakeServer([this](const FakeRequest& request) { return (*this)(request); }, port);
  }
  std::vector<FakeRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  /// Requests to that end of a path.
  int count(std::string_view end) const {
    int found = 0;
    for (const auto& request : requests()) found += request.path.ends_with(end);
    return found;
  }
  /// Steps of the metrics that came, in order.
  std::vector<int64_t> steps() const {
    std::lock_guard lock(mutex_);
    std::vector<int64_t> steps;
    for (const auto& metric : metrics) steps.push_back(metric.at("step").get<int64_t>());
    return steps;
  }

  nlohmann::json metrics = nlohmann::json::array();
  std::map<std::string, std::string> params;
  std::vector<nlohmann::json> runs;  ///< bodies of runs/create
  std::vector<std::string> statuses;
  std::map<std::string, std::string> files;
  std::string artifact_uri = "mlflow-artifacts:/7/r0/artifacts";

  /// Takes a request in as MLflow does.
  FakeReply answer(const FakeRequest& request) {
    using nlohmann::json;
    const auto is = [&](std::string_view part) { return request.path.find(part) != std::string::npos; };
    if (is("/mlflow-artifacts/artifacts/")) {
      files[request.path.substr(request.path.find("/artifacts/") + 11)] = request.body;
      return {.body = ""};
    }
    const auto body = json::parse(request.body.empty() ? "{}" : request.body);
    if (is("experiments/get-by-name?experiment_name=digits"))
      return {.body = R"({"experiment":{"experiment_id":"7"}})"};
    if (is("experiments/get-by-name")) return {.body = R"({"error_code":"RESOURCE_DOES_NOT_EXIST"})", .status = 404};
    if (is("experiments/create")) return {.body = R"({"experiment_id":"8"})"};
    if (is("runs/create")) runs.push_back(body);
    if (is("runs/search"))
      return {.body = json{{"runs", runs.empty() ? json::array() : json::array({run().at("run")})}}.dump()};
    if (is("runs/create") || is("runs/get")) return {.body = run().dump()};
    if (is("runs/update")) statuses.push_back(body.at("status").get<std::string>());
    if (is("runs/log-batch")) take(body);
    return {};
  }

 private:
  nlohmann::json run() const {
    const nlohmann::json info{{"artifact_uri", artifact_uri}, {"experiment_id", "7"}, {"run_id", "r0"}};
    std::map<std::string, nlohmann::json> latest;
    for (const auto& metric : metrics) latest[metric.at("key").get<std::string>()] = metric;
    auto list = nlohmann::json::array();
    for (const auto& [name, metric] : latest) list.push_back(metric);
    return {{"run", {{"data", {{"metrics", list}}}, {"info", info}}}};
  }
  void take(const nlohmann::json& body) {
    for (const auto& metric : body.value("metrics", nlohmann::json::array())) metrics.push_back(metric);
    for (const auto& param : body.value("params", nlohmann::json::array()))
      params[param.at("key").get<std::string>()] = param.at("value").get<std::string>();
  }

  mutable std::mutex mutex_;
  Answer instead_;
  std::vector<FakeRequest> requests_;
};

/// Tests that need libcurl, which a build may lack.
class WithCurl : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("no_proxy", "127.0.0.1", 1);
    try {
      const std::atomic<bool> never{false};
      HttpConnection({}, std::chrono::seconds(1), &never);
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

}  // namespace muster::track
