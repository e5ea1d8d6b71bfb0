#include "checkpoint/publish_together.h"

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "checkpoint/numbered_folder.h"
#include "muster/base/error.h"
#include "muster/comm/detail/blame.h"
#include "muster/format/detail/atomic_file.h"
#include "muster/format/detail/atomic_folder.h"
#include "muster/format/detail/checksum.h"
#include "muster/format/detail/json.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using format::Json;

/// What went wrong on a rank, as it travels to the others.
struct Failure {
  std::string id;
  std::string message;
  int rank = 0;  ///< as rank 0 tells it to all
};

/// What `action` throws, if it throws; a CommError goes on its way.
template <class Action>
std::optional<Failure> failure_of(Action&& action) {
  try {
    action();
    return std::nullopt;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    return Failure{error.id(), std::string(error.what()).substr(error.id().size() + 2)};
  } catch (const std::exception& error) {
    return Failure{"MU202", std::string("nothing was saved: ") + error.what()};
  }
}

Json json_of(const std::optional<Failure>& failure) {
  return failure ? Json(Json::Map{{"id", failure->id},
                                  {"message", format::is_utf8(failure->message) ? failure->message : "(no text)"},
                                  {"rank", std::int64_t{failure->rank}}})
                 : Json();
}

/// What another rank sent under this name. Throws: CheckpointError (MU210) if it is not there, or of another kind.
template <class T>
const T& field(const Json* value, const char* name) {
  const T* held = value ? value->get<T>() : nullptr;
  if (!held)
    throw CheckpointError(
        "MU210", std::string("a message between ranks has no '") + name + "': do all ranks run the same build?");
  return *held;
}
template <class T>
const T& field(const Json& message, const char* name) {
  return field<T>(message.find(name), name);
}

std::optional<Failure> failure_in(const Json& message) {
  const Json* failure = message.find("failure");
  if (!failure || failure->is_null()) return std::nullopt;
  return Failure{field<std::string>(*failure, "id"), field<std::string>(*failure, "message"),
                 static_cast<int>(field<std::int64_t>(*failure, "rank"))};
}

[[noreturn]] void raise(const Failure& failure) { throw CheckpointError(failure.id, failure.message); }

Json parse_message(const std::string& text) { return format::parse_json(text, "a message between ranks", "MU210"); }

/// Rank 0's say, on all ranks: throws there what it says has failed.
Json hear_rank_0(const comm::Communicator& group, const Json& said) {
  const Json heard = parse_message(group.as_library("what rank 0 says of a checkpoint")
                                       .broadcast_bytes(group.rank() == 0 ? format::to_text(said) : std::string()));
  const auto failure = failure_in(heard);
  if (!failure) return heard;
  comm::blame(group, failure->rank, failure->message);
  raise(*failure);
}

Json json_of(const format::ShardEntry& shard) {
  Json::List shape;
  for (const std::int64_t size : shard.shape) shape.emplace_back(size);
  return Json::List{shard.name, shard.dtype, std::move(shape), shard.begin, shard.count};
}

format::ShardEntry shard_of(const Json& json, int rank) {
  const auto& fields = field<Json::List>(&json, "shard");
  const auto at = [&](std::size_t i) { return i < fields.size() ? &fields[i] : nullptr; };
  format::ShardEntry shard;
  shard.name = field<std::string>(at(0), "name");
  shard.dtype = field<std::string>(at(1), "dtype");
  for (const Json& size : field<Json::List>(at(2), "shape")) shard.shape.push_back(field<std::int64_t>(&size, "size"));
  shard.begin = field<std::int64_t>(at(3), "begin");
  shard.count = field<std::int64_t>(at(4), "count");
  shard.rank = rank;
  return shard;
}

Json report_of(const std::optional<Failure>& failure, const format::FileMark& mark,
               const std::vector<format::ShardEntry>& shards) {
  Json::List list;
  if (!failure)
    for (const format::ShardEntry& shard : shards) list.push_back(json_of(shard));
  return Json::Map{{"failure", json_of(failure)},
                   {"bytes", static_cast<std::int64_t>(mark.bytes)},
                   {"checksum", format::to_hex(mark.checksum)},
                   {"slices", std::move(list)}};
}

std::uint64_t checksum_in(const Json& report) {
  const auto checksum = format::from_hex(field<std::string>(report, "checksum"));
  if (!checksum)
    throw CheckpointError("MU210", "a message between ranks has no 'checksum': do all ranks run the same build?");
  return *checksum;
}

/// What rank 0 alone knows and holds.
struct Draft {
  std::optional<NumberedFolder> numbered;
  std::unique_ptr<format::AtomicFolder> folder;
  std::string id;
  int failed_rank = 0;

  void open(const fs::path& path, const WriteCheckpointOptions& options) {
    fs::path target = path;
    if (options.numbered) target = numbered.emplace(path).next();
    folder = std::make_unique<format::AtomicFolder>(target, options.durability, format::is_checkpoint_file_name);
    std::random_device device;
    id = format::to_hex(std::uint64_t{device()} << 32 | device());
  }

  void publish(const std::vector<Json>& reports, const WriteCheckpointOptions& options) {
    format::Manifest manifest{.id = id, .indexes = {}};
    std::vector<format::ShardEntry> shards;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      failed_rank = static_cast<int>(rank);
      if (auto failure = failure_in(reports[rank]))
        raise({failure->id, (reports.size() > 1 ? "rank " + std::to_string(rank) + ": " : "") + failure->message});
      manifest.indexes.push_back(
          {static_cast<std::uint64_t>(field<std::int64_t>(reports[rank], "bytes")), checksum_in(reports[rank])});
      for (const Json& part : field<Json::List>(reports[rank], "slices"))
        shards.push_back(shard_of(part, static_cast<int>(rank)));
    }
    failed_rank = 0;
    format::check_shards(std::move(shards), folder->path().string());
    format::AtomicFile file(folder->part() / format::kManifestName,
                            options.durability == Durability::none ? Durability::none : Durability::file);
    const std::string text = format::to_text(manifest);
    file.write(std::array{std::string_view(text)});
    file.publish();
    folder->publish();
    if (numbered) numbered->keep_highest(options.total_limit);
  }
};

}  // namespace

fs::path publish_together(const fs::path& folder, const comm::Communicator& group,
                          const WriteCheckpointOptions& options, const WriteRank& write_rank,
                          const std::vector<format::ShardEntry>& shards) {
  Draft draft;
  const bool leads = group.rank() == 0;
  std::optional<Failure> failure;
  if (leads) failure = failure_of([&] { draft.open(folder, options); });
  const Json start = hear_rank_0(group, leads && !failure ? Json(Json::Map{{"part", draft.folder->part().string()},
                                                                           {"path", draft.folder->path().string()},
                                                                           {"id", draft.id}})
                                                          : Json(Json::Map{{"failure", json_of(failure)}}));
  format::FileMark mark;
  failure = failure_of([&] { mark = write_rank(field<std::string>(start, "part"), field<std::string>(start, "id")); });
  const auto texts = group.as_library("reports of a checkpoint's files")
                         .gather_bytes(format::to_text(report_of(failure, mark, shards)));
  if (leads)
    failure = failure_of([&] {
      std::vector<Json> reports;
      for (const std::string& text : texts) reports.push_back(parse_message(text));
      draft.publish(reports, options);
    });
  if (failure) failure->rank = draft.failed_rank;
  hear_rank_0(group, Json(Json::Map{{"failure", json_of(failure)}}));
  return field<std::string>(start, "path");
}

}  // namespace muster::checkpoint
