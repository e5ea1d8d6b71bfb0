#include <utility>

#include "checkpoint/publish_together.h"
#include "checkpoint/rank_save_plan.h"
#include "muster/checkpoint/checkpoint.h"

namespace muster {

std::filesystem::path write_checkpoint(const CheckpointContents& contents, const std::filesystem::path& folder,
                                       const comm::Communicator& group, const WriteCheckpointOptions& options) {
  checkpoint::RankSavePlan plan;
  const auto write_rank = [&](const checkpoint::CreateFile& create, const std::string& id) {
    auto planned = checkpoint::plan_rank(contents, group.rank(), folder);
    const auto mark = checkpoint::write_rank(planned, nullptr, create, group.rank(), id, [] { return true; });
    plan.shards = std::move(planned.shards);
    return mark;
  };
  return checkpoint::publish_together(folder, group, options, write_rank, plan.shards);
}

}  // namespace muster
