#include "job_state.h"

#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/shard/tensor_shard.h"
#include "random_state.h"
#include "runtime/saved_tensors.h"
#include "state_digest.h"

namespace muster::runtime {

// --- gradients waiting for a step

/// Gradients by optimizer, each a map from a parameter's number to its gradient.
struct WaitingGradients {
  State::List whole;    ///< this rank's full gradients
  State::List reduced;  ///< entries of add_shard() for the reduced gradients of sharded models
};

/// The saved gradients of one optimizer, in the form of WaitingGradients; nullptr where there are none.
struct SavedGradients {
  const State* whole = nullptr;
  const State* reduced = nullptr;
  bool whole_is_reduced = false;  ///< gradients were equal on every rank, so the next step may use them unchanged
};

namespace {

/// The model of the parameter; nullptr if no prepared model has it.
parallel::ManagedModel* owner_of(const StatefulObjects& contents, const at::Tensor& parameter) {
  const auto& models = contents.models;
  const auto owner =
      std::find_if(models.begin(), models.end(), [&](const auto& model) { return model->managed->expects(parameter); });
  return owner == models.end() ? nullptr : (*owner)->managed.get();
}

struct LoadedGradient {
  parallel::ManagedModel* owner = nullptr;
  at::Tensor parameter;
  parallel::GradientParts parts = {};

  /// `shard`: this rank's shard of the parameter; nullptr if the parameter is whole here.
  void add_reduced(const State& saved, const TensorShard* shard, const TensorReader& reader) {
    if (shard) parts.shard = reader.shard(saved, *shard);
    else parts.whole = reader.whole(saved);
  }
  /// Where gradients are whole, reduced and unreduced ones add up to one sum.
  void add_whole(const at::Tensor& saved) { parts.whole = parts.whole.defined() ? parts.whole + saved : saved; }
};

/// The gradients that no step has used. Reduced ones go to `shards`.
WaitingGradients waiting_gradients(const StatefulObjects& contents, std::vector<TensorShard>& shards) {
  const auto held = shards_of(contents.models);
  WaitingGradients waiting;
  for (size_t o = 0; o < contents.optimizers.size(); ++o) {
    State::Map whole, reduced;
    const auto parameters =
        contents.optimizers[o]->gradients_are_used() ? std::vector<at::Tensor>() : contents.optimizers[o]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto* owner = owner_of(contents, parameters[i]);
      const auto parts =
          owner ? owner->gradient_parts(parameters[i]) : parallel::GradientParts{.whole = parameters[i].grad()};
      const auto number = std::to_string(i);
      if (parts.whole.defined()) whole.emplace_back(number, parts.whole.detach());
      if (!parts.shard.defined()) continue;
      const auto& shard = held.at(parameters[i].unsafeGetTensorImpl());
      reduced.emplace_back(number, add_shard("gradients/" + std::to_string(o) + "/" + number, shard,
                                             parts.shard.narrow(0, 0, shard.local.numel()), shards));
    }
    waiting.whole.emplace_back(std::move(whole));
    waiting.reduced.emplace_back(std::move(reduced));
  }
  return waiting;
}

/// Reads the values it needs; the returned function replaces the current gradients by the saved ones.
/// `saved`: by optimizer.
std::function<void()> prepare_gradients(const StatefulObjects& contents, const std::vector<SavedGradients>& saved,
                                        const TensorReader& reader) {
  const auto held = shards_of(contents.models);
  std::vector<LoadedGradient> all;
  std::vector<std::pair<std::shared_ptr<PreparedOptimizer>, bool>> optimizers;
  for (size_t o = 0; o < contents.optimizers.size(); ++o) {
    const auto& [whole, reduced, whole_is_reduced] = saved.at(o);
    const auto parameters = contents.optimizers[o]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto number = std::to_string(i);
      const auto shard = held.find(parameters[i].unsafeGetTensorImpl());
      const auto* mine = shard == held.end() ? nullptr : &shard->second;
      LoadedGradient gradient{.owner = owner_of(contents, parameters[i]), .parameter = parameters[i]};
      if (const auto* part = reduced ? reduced->find(number) : nullptr) gradient.add_reduced(*part, mine, reader);
      if (const auto* part = whole ? whole->find(number) : nullptr) {
        if (whole_is_reduced) gradient.add_reduced(*part, mine, reader);
        else gradient.add_whole(part->tensor());
      }
      all.push_back(std::move(gradient));
    }
    const auto is_there = [](const State* gradients) { return gradients && !gradients->map().empty(); };
    optimizers.emplace_back(contents.optimizers[o], is_there(whole) ? whole_is_reduced : is_there(reduced));
  }
  return [all = std::move(all), optimizers = std::move(optimizers), models = contents.models] {
    const at::NoGradGuard no_grad;
    for (const auto& [owner, parameter, parts] : all)  // all read before any is loaded: they share a reused buffer
      if (owner) owner->zero_grad(parameter, /*set_to_none=*/true);
      else parameter.mutable_grad().reset();
    for (const auto& [owner, parameter, parts] : all)
      if (owner && (parts.whole.defined() || parts.shard.defined())) owner->load_gradient(parameter, parts);
      else if (parts.whole.defined()) parameter.mutable_grad() = at::empty_like(parameter).copy_(parts.whole);
    for (const auto& [optimizer, reduced] : optimizers) optimizer->note_loaded_gradients(reduced);
  };
}

// --- saving

/// An open window of a sharded model is begun again after loading: saving each rank's full gradients would take the
/// memory of the model times the number of ranks.
bool sharded(const StatefulObjects& contents) {
  return std::any_of(contents.models.begin(), contents.models.end(),
                     [](const auto& model) { return model->managed->sharded(); });
}

/// Where the open window began in the loader that was used last, for a job that cannot take up its gradients.
State window_begin(const StatefulObjects& contents) {
  const auto open = contents.accumulation->open_micro_batches();
  State begin = State::Map{{"micro_batches", open}};
  if (open == 0) return begin;
  if (sharded(contents)) begin.set("again", true);
  const data::LoaderState* latest = nullptr;
  for (size_t i = 0; i < contents.loaders.size(); ++i) {
    const auto& loader = *contents.loaders[i];
    const auto start = loader.save_position().samples - open * loader.total_batch_size();
    if (loader.num_yielded() == 0 || loader.total_batch_size() == 0 || start < 0 ||
        (latest && latest->began() > loader.began()))
      continue;
    latest = &loader;
    begin.set("loader", i);
    begin.set("samples", start);
  }
  return begin;
}

/// Puts states that are equal on all ranks into the shared list, and others into the lists of the ranks; the other list
/// gets an empty entry in their place.
void divide(const comm::Communicator& group, State::List states, const std::string& name, CheckpointContents& job) {
  std::string mine(states.size() * sizeof(std::uint64_t), '\0');
  for (size_t i = 0; i < states.size(); ++i) {
    const auto value = digest(states[i]);
    std::memcpy(mine.data() + i * sizeof value, &value, sizeof value);
  }
  const auto all = group.internal("comparing the states of " + name).all_gather_bytes(mine);
  State::List shared, own;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto part = [&](const std::string& digests) {
      return digests.substr(i * sizeof(std::uint64_t), sizeof(std::uint64_t));
    };
    const bool equal = std::all_of(all.begin(), all.end(), [&](const auto& other) {
      return other.size() == mine.size() && part(other) == part(mine);
    });
    shared.push_back(equal ? states[i] : State());
    own.push_back(equal ? State() : std::move(states[i]));
  }
  job.shared.set(name, std::move(shared));
  job.per_rank.set(name, std::move(own));
}

void save_gradients(const StatefulObjects& contents, CheckpointContents& job) {
  const bool again = job.shared.at("window").find("again");
  auto waiting = again ? WaitingGradients() : waiting_gradients(contents, job.shards);
  job.shared.set("reduced_gradients", std::move(waiting.reduced));
  divide(contents.group, std::move(waiting.whole), "gradients", job);
}

// --- loading

class JobLoader {
 public:
  JobLoader(const StatefulObjects& contents, const JobLoad& how, AtomicLoad& load)
      : contents_(contents), shared_(how.shared), how_(how), load_(load), rank_(contents.group.rank()),
        saved_ranks_(how.checkpoint.world_size()), same_world_(saved_ranks_ == contents.group.size()),
        again_(!same_world_ || shared_.at("window").find("again")) {
    per_rank_ = how.checkpoint.per_rank(rank_ < saved_ranks_ ? rank_ : 0);
  }

  std::vector<std::string> run() {
    const auto& parts = how_.parts;
    require_counts();
    each(parts.progress, contents_.objects, &JobLoader::object);
    each(parts.progress, contents_.loaders, &JobLoader::loader);
    each(parts.optimizers, contents_.schedulers, &JobLoader::scheduler);
    if (parts.progress) window();
    each(parts.models, contents_.models, &JobLoader::model);
    each(parts.optimizers, contents_.optimizers, &JobLoader::optimizer);
    if (parts.progress) random();
    return std::move(notes_);
  }

 private:
  template <class T>
  void each(bool loaded, const std::vector<T>& contents, void (JobLoader::*load)(size_t)) {
    for (size_t i = 0; loaded && i < contents.size(); ++i) (this->*load)(i);
  }

  void require_counts() const {
    const auto check = [&](bool loaded, const char* name, size_t count, bool fewer = false) {
      if (!loaded) return;
      const auto saved = shared_.at(name).list().size();
      if (saved == count || ((fewer || !how_.strict) && saved > count)) return;
      throw CheckpointError(
          "MU240",
          formatted("the checkpoint holds {} {} and this program has {}: prepare and register the same ones, in the "
                    "same order, before load_state",
                    saved, name, count));
    };
    check(how_.parts.models, "models", contents_.models.size());
    check(how_.parts.optimizers, "optimizers", contents_.optimizers.size());
    check(how_.parts.optimizers, "schedulers", contents_.schedulers.size());
    check(how_.parts.progress, "loaders", contents_.loaders.size(), how_.fewer_loaders);
    check(how_.parts.progress, "objects", contents_.objects.size());
  }

  /// The saved state of one entry: the shared one, or this rank's own. Empty: a hook removed it.
  State saved(const char* name, size_t i) {
    if (const auto& shared = shared_.at(name).list()[i]; !shared.empty()) return shared;
    const auto& own = per_rank_.at(name).list()[i];
    if (!own.empty() && rank_ >= saved_ranks_)
      notes_.push_back(
          formatted("{}[{}] was different on every rank; rank {}, which did not exist then, takes that of rank 0", name,
                    i, rank_));
    return own;
  }

  void object(size_t i) {
    const auto state = saved("objects", i);
    if (!state.empty()) contents_.objects[i].load(state, {&how_.checkpoint, how_.strict}, load_);
  }

  void loader(size_t i) {
    const auto state = saved("loaders", i);
    if (state.empty()) return;
    auto position = position_from(state);
    const auto& begin = shared_.at("window");
    if (again_ && begin.find("loader") && begin.at("loader").as<size_t>() == i)
      position.samples = begin.at("samples").integer();
    load_position(contents_.loaders[i], position, load_);
  }

  void scheduler(size_t i) {
    const auto state = saved("schedulers", i);
    if (state.empty()) return;
    const auto& scheduler = contents_.schedulers[i];
    load_.now([&] { scheduler->load_state_dict(state); },
              [scheduler, before = scheduler->state_dict()] { scheduler->load_state_dict(before); });
  }

  void window() {
    const auto& begin = shared_.at("window");
    const auto open = begin.at("micro_batches").as<int>();
    const auto before = contents_.accumulation->state_dict();
    const auto undo = [accumulation = contents_.accumulation, before] { accumulation->load_state_dict(before); };
    if (!again_) {
      load_.now([&] { contents_.accumulation->load_state_dict(per_rank_.at("accumulation")); }, undo);
      return gradients(/*again=*/false);
    }
    if (open > 0 && !begin.find("loader"))
      throw CheckpointError("MU242", formatted("the checkpoint was saved by {} ranks inside a window of gradient "
                                               "accumulation, whose gradients cannot be "
                                               "taken up here, and its loader cannot go back to the window's begin: "
                                               "resume with {} ranks under 'ddp', or "
                                               "from a checkpoint between windows",
                                               saved_ranks_, saved_ranks_));
    if (open > 0)
      notes_.push_back(
          formatted("saved by {} ranks inside a window of gradient accumulation: its {} micro-batches will run again, "
                    "since their "
                    "gradients cannot be taken up here",
                    saved_ranks_, open));
    load_.now([&] { contents_.accumulation->reset(); }, undo);
    gradients(/*again=*/open > 0);
  }

  /// `again`: the gradients of the open window are computed again.
  void gradients(bool again) {
    std::vector<SavedGradients> all(contents_.optimizers.size());
    for (size_t o = 0; !again && o < all.size(); ++o) {
      const auto* equal = entry(shared_, "gradients", o);
      const auto* own = entry(per_rank_, "gradients", o);
      all[o].reduced = entry(shared_, "reduced_gradients", o);
      all[o].whole_is_reduced = equal && shared_.at("window").at("micro_batches").integer() == 0;
      all[o].whole = equal ? equal : own;
      if (!same_world_ && !equal && own && !own->map().empty()) refuse_gradients_of_other_ranks();
    }
    load_.at_end(prepare_gradients(contents_, all, TensorReader(&how_.checkpoint)));
  }

  static const State* entry(const State& saved, const char* name, size_t i) {
    const auto* list = saved.find(name);
    return list && i < list->list().size() && !list->list()[i].empty() ? &list->list()[i] : nullptr;
  }

  [[noreturn]] void refuse_gradients_of_other_ranks() const {
    throw CheckpointError(
        "MU584",
        formatted("the checkpoint was saved by {} ranks, each with gradients of its own that no step had used, "
                  "as backwards in no_sync leave them, and {} ranks cannot take them up: resume with {} "
                  "ranks, or from a checkpoint that was saved after a step",
                  saved_ranks_, contents_.group.size(), saved_ranks_));
  }

  void model(size_t i) {
    const auto& saved = shared_.at("models").list()[i];
    if (!saved.empty())
      load_.at_end(
          prepare_weights(*contents_.models[i], saved.at("weights"), how_.strict, TensorReader(&how_.checkpoint)));
    communication(i);
  }

  /// The state of a communication hook is bound to this rank and this world size.
  void communication(size_t i) {
    const auto& saved = per_rank_.at("communication").list().at(i);
    const auto& managed = contents_.models[i]->managed;
    auto* kept = managed->comm_hook_state();
    if (saved.empty() || !kept) return;
    if (!same_world_) return note_other_world(i);
    load_.now([&] { kept->load_comm_hook_state(saved); },
              [managed, kept, before = clone(kept->save_comm_hook_state())] { kept->load_comm_hook_state(before); });
  }

  void note_other_world(size_t i) {
    if (rank_ == 0)
      notes_.push_back(
          formatted("saved by {} ranks, resumed by {}: what the communication hook of model {} carries from step to "
                    "step, as PowerSGD's factors, error feedback and count of iterations, starts from scratch",
                    saved_ranks_, contents_.group.size(), i));
  }

  void optimizer(size_t i) {
    const auto& saved = shared_.at("optimizers").list()[i];
    if (!saved.empty()) load_.at_end(contents_.optimizers[i]->prepare_load(saved, TensorReader(&how_.checkpoint)));
  }

  void random() {
    if (rank_ < saved_ranks_) {
      const auto before = random_state(contents_.device);
      load_.now([&] { set_random_state(per_rank_.at("random"), contents_.device); },
                [before, device = contents_.device] { set_random_state(before, device); });
    }
    if (!same_world_ && rank_ == 0)
      notes_.push_back(
          formatted("saved by {} ranks, resumed by {}: random numbers that each rank draws for itself will differ from "
                    "those of a run "
                    "that was not interrupted",
                    saved_ranks_, contents_.group.size()));
  }

  const StatefulObjects& contents_;
  const State& shared_;
  const JobLoad& how_;
  AtomicLoad& load_;
  int rank_;
  int saved_ranks_;
  bool same_world_;
  bool again_;  // an open window is begun again
  State per_rank_;
  std::vector<std::string> notes_;
};

}  // namespace

CheckpointContents save_job(const StatefulObjects& contents) {
  comm::require_same_device_operations(contents.group);
  CheckpointContents job;
  State::List models, optimizers, schedulers, loaders, objects;
  for (const auto& model : contents.models)
    models.push_back(
        State::Map{{"class", model->module->name()},
                   {"weights", save_weights_state(*model, "models/" + std::to_string(models.size()), job.shards)}});
  for (const auto& optimizer : contents.optimizers)
    optimizers.push_back(optimizer->state_dict("optimizers/" + std::to_string(optimizers.size()), job.shards));
  for (const auto& scheduler : contents.schedulers) schedulers.push_back(scheduler->state_dict());
  for (const auto& loader : contents.loaders) loaders.push_back(position_state(*loader));
  for (const auto& object : contents.objects) objects.push_back(object.save(job.shards));
  job.shared.set("models", std::move(models));
  job.shared.set("optimizers", std::move(optimizers));
  job.shared.set("window", window_begin(contents));
  divide(contents.group, std::move(schedulers), "schedulers", job);
  divide(contents.group, std::move(loaders), "loaders", job);
  divide(contents.group, std::move(objects), "objects", job);
  job.per_rank.set("accumulation", contents.accumulation->state_dict());
  save_gradients(contents, job);
  State::List communication;
  for (const auto& model : contents.models) {
    auto* kept = model->managed->comm_hook_state();
    communication.push_back(kept ? kept->save_comm_hook_state() : State());
  }
  job.per_rank.set("communication", std::move(communication));
  job.per_rank.set("random", random_state(contents.device));
  return job;
}

std::vector<std::string> load_job(const StatefulObjects& contents, const JobLoad& how, AtomicLoad& load) {
  return JobLoader(contents, how, load).run();
}

}  // namespace muster::runtime
