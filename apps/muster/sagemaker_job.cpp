#include <nlohmann/json.hpp>

#include "job.h"

namespace muster::cli {
namespace {

// JSON that keeps the order of writing.
using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kLongestJobName = 63;            // limit of SageMaker in characters
constexpr std::size_t kMostWords = 100;                // limit on the number of ContainerArguments
constexpr std::size_t kLongestWord = 256;              // limit on the length of each, in characters
constexpr auto kDefaultTime = std::chrono::hours(24);  // time limit of a job without --time

std::chrono::seconds time_of(const Job& job) {
  return job.time.count() > 0 ? job.time : std::chrono::seconds(kDefaultTime);
}

OrderedJson algorithm(const Job& job) {
  OrderedJson words = {"--devices", job.gpus > 0 || job.devices == 1 ? "auto" : std::to_string(job.devices), "--"};
  for (const auto& word : job.program) words.push_back(word);
  OrderedJson result = {{"TrainingImage", job.image},
                        {"TrainingInputMode", "File"},
                        {"ContainerEntrypoint", {"muster", "run"}},
                        {"ContainerArguments", words}};
  for (const auto& [name, regex] : job.metrics)
    result["MetricDefinitions"].push_back({{"Name", name}, {"Regex", regex}});
  return result;
}

OrderedJson channel(const std::string& name, const std::string& place) {
  return {{"ChannelName", name},
          {"DataSource",
           {{"S3DataSource",
             {{"S3DataType", "S3Prefix"}, {"S3Uri", place}, {"S3DataDistributionType", "FullyReplicated"}}}}}};
}

/// After an interruption on spot instances, the job starts over with the files of its checkpoints.
void add_spot(const Job& job, OrderedJson& request) {
  request["EnableManagedSpotTraining"] = true;
  request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2 * time_of(job).count();
}

void need(const std::string& flag, const std::string& value, const std::string& what) {
  if (value.empty()) refuse_flag_value(flag, "is missing; give " + what);
}

void check_s3(const std::string& flag, const std::string& place) {
  if (!place.starts_with("s3://"))
    refuse_flag_value(flag, "'" + place + "' is not a place in S3; write s3://BUCKET/FOLDER");
}

/// Whether the text is a valid name of a training job: letters, digits and single '-' between them.
bool is_job_name(const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  for (const char c : name)
    if (!is_plain(c) && c != '-') return false;
  return !name.empty() && name.size() <= kLongestJobName && is_plain(name.front()) && is_plain(name.back());
}

}  // namespace

void check_sagemaker(const Job& job) {
  if (!is_job_name(job.name))
    refuse_flag_value(
        "--name", "'" + job.name + "' is not a valid name for a training job; use at most 63 letters, digits and '-'");
  need("--image", job.image, "the image in ECR with the program and muster");
  need("--role", job.role, "the ARN of the execution role, arn:aws:iam::ACCOUNT:role/NAME");
  need("--instance-type", job.instance_type, "one such as ml.p4d.24xlarge");
  need("--output", job.output, "where results go, s3://BUCKET/FOLDER");
  if (!job.role.starts_with("arn:"))
    refuse_flag_value("--role", "'" + job.role + "' is not an ARN; write arn:aws:iam::ACCOUNT:role/NAME");
  check_s3("--output", job.output);
  if (!job.checkpoints.empty()) check_s3("--checkpoints", job.checkpoints);
  for (const auto& [name, place] : job.inputs) check_s3("--input", place);
  if (job.spot && job.checkpoints.empty())
    refuse_flag_value("--spot", "needs --checkpoints s3://BUCKET/FOLDER: an interrupted job would start from scratch");
  if (job.program.size() + 3 > kMostWords)
    refuse_flag_value("PROGRAM", "has more words than the " + std::to_string(kMostWords) + " that SageMaker passes on");
  for (const auto& word : job.program)
    if (word.size() > kLongestWord || word.empty())
      refuse_flag_value("PROGRAM", "has a word of " + std::to_string(word.size()) +
                                       " characters; SageMaker passes on 1 to " + std::to_string(kLongestWord));
}

std::string sagemaker_request(const Job& job) {
  OrderedJson request = {
      {"TrainingJobName", job.name}, {"AlgorithmSpecification", algorithm(job)}, {"RoleArn", job.role}};
  for (const auto& [name, place] : job.inputs) request["InputDataConfig"].push_back(channel(name, place));
  request["OutputDataConfig"] = {{"S3OutputPath", job.output}};
  request["ResourceConfig"] = {
      {"InstanceType", job.instance_type}, {"InstanceCount", job.nodes}, {"VolumeSizeInGB", job.volume_size}};
  request["StoppingCondition"] = {{"MaxRuntimeInSeconds", time_of(job).count()}};
  if (!job.checkpoints.empty())
    request["CheckpointConfig"] = {{"S3Uri", job.checkpoints}, {"LocalPath", "/opt/ml/checkpoints"}};
  if (job.spot) add_spot(job, request);
  if (job.restarts > 0) request["RetryStrategy"] = {{"MaximumRetryAttempts", job.restarts}};
  for (const auto& [name, value] : job.environment) request["Environment"][name] = value;
  return request.dump(2) + "\n";
}

}  // namespace muster::cli
