#include "checkpoint/publish_together.h"

#include <array>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "comm/agreement.h"
#include "format/checksum.h"
#include "format/json.h"
#include "muster/base/error.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using format::Json;

/// Runs `action`, and converts its exceptions to a CheckpointError whose message begins with `prefix`.
template <class Action>
void as_checkpoint_error(const std::string& prefix, Action&& action) {
  try {
    action();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.id(), prefix + error.message());
  } catch (const std::exception& error) {
    throw CheckpointError("MU202", prefix + "nothing was saved: " + error.what());
  }
}

/// Throws the failure on all ranks alike.
void raise(const comm::Failure& failure) {
  throw CheckpointError(failure.id.empty() ? "MU202" : failure.id, failure.message);
}

/// The message of another rank under this name. Throws: CheckpointError (MU210) if it is missing or of another kind.
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

Json parse_message(const std::string& text) { return format::parse_json(text, "a message between ranks", "MU210"); }

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

Json report_of(const format::FileMark& mark, const std::vector<format::ShardEntry>& shards) {
  Json::List list;
  for (const format::ShardEntry& shard : shards) list.push_back(json_of(shard));
  return Json::Map{{"bytes", static_cast<std::int64_t>(mark.bytes)},
                   {"checksum", format::to_hex(mark.checksum)},
                   {"slices", std::move(list)}};
}

std::uint64_t checksum_in(const Json& report) {
  const auto checksum = format::from_hex(field<std::string>(report, "checksum"));
  if (!checksum)
    throw CheckpointError("MU210", "a message between ranks has no 'checksum': do all ranks run the same build?");
  return *checksum;
}

const char* kind_of_place(bool has_storage) { return has_storage ? "a storage of the program's own" : "a folder"; }

void check_kind(const std::string& on_rank_0, bool has_storage) {
  if (on_rank_0 != kind_of_place(has_storage))
    throw CheckpointError("MU316", std::string("this rank saves to ") + kind_of_place(has_storage) + " and rank 0 to " +
                                       on_rank_0 + "; nothing was saved. Give all ranks the same storage");
}

/// State that only rank 0 has.
struct Draft {
  SaveTarget& target;
  std::string id = {};

  void open(const fs::path& path) {
    std::random_device device;
    id = format::to_hex(std::uint64_t{device()} << 32 | device());
    target.open(path, id);
  }

  std::string place(bool has_storage) const {
    return format::to_text(Json::Map{
        {"part", target.part()}, {"path", target.path().string()}, {"id", id}, {"to", kind_of_place(has_storage)}});
  }

  void publish(const std::vector<std::string>& texts) {
    std::vector<Json> reports;
    for (const std::string& text : texts) reports.push_back(parse_message(text));
    format::Manifest manifest{.id = id, .indexes = {}};
    std::vector<format::ShardEntry> shards;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      manifest.indexes.push_back(
          {static_cast<std::uint64_t>(field<std::int64_t>(reports[rank], "bytes")), checksum_in(reports[rank])});
      for (const Json& part : field<Json::List>(reports[rank], "slices"))
        shards.push_back(shard_of(part, static_cast<int>(rank)));
    }
    format::check_shards(std::move(shards), target.path().string());
    const auto file = target.create(target.part(), std::string(format::kManifestName));
    const std::string text = format::to_text(manifest);
    file->write(std::array{std::string_view(text)});
    file->publish();
    target.publish();
  }
};

}  // namespace

fs::path publish_together(const fs::path& folder, const comm::Communicator& group,
                          const WriteCheckpointOptions& options, const WriteRank& write_rank,
                          const std::vector<format::ShardEntry>& shards) {
  const auto target = make_target(options);
  Draft draft{*target};
  const auto lead = [&](const char* label, const auto& action) {
    const auto run = [&] {
      std::string said;
      as_checkpoint_error("", [&] { said = action(); });
      return said;
    };
    return comm::broadcast_result(group, label, run, raise);
  };
  const Json start = parse_message(lead("where rank 0 saves a checkpoint", [&] {
    draft.open(folder);
    return draft.place(options.storage != nullptr);
  }));
  format::FileMark mark;
  const auto write = [&] {
    as_checkpoint_error(group.size() > 1 ? "rank " + std::to_string(group.rank()) + ": " : "", [&] {
      check_kind(field<std::string>(start, "to"), options.storage != nullptr);
      mark =
          write_rank([&](const std::string& file) { return target->create(field<std::string>(start, "part"), file); },
                     field<std::string>(start, "id"));
    });
    return std::string();
  };
  comm::all_gather_result(group, "writing the files of a checkpoint", write, raise);
  const auto texts =
      group.internal("reports of a checkpoint's files").gather_bytes(format::to_text(report_of(mark, shards)));
  lead("whether rank 0 published a checkpoint", [&] {
    draft.publish(texts);
    return std::string();
  });
  return field<std::string>(start, "path");
}

}  // namespace muster::checkpoint
