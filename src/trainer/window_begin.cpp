#include "window_begin.h"

#include <algorithm>

#include "core.h"

namespace muster::trainer {

State WindowBegin::state_dict() const {
  State::List positions;
  for (const auto& one : loaders)
    positions.emplace_back(
        State::Map{{"dataset", one.dataset}, {"epoch", one.epoch}, {"samples", one.samples}, {"seed", one.seed}});
  return State::Map{{"batches", batches},
                    {"loaders", std::move(positions)},
                    {"metric_objects", book->metrics().state_dict({}, /*values=*/false)},
                    {"total_batches", total_batches},
                    {"training", book->state_dict()}};
}

void WindowBegin::load_state_dict(const State& state, LatestMetrics& latest) {
  batches = state.at("batches").integer();
  total_batches = state.at("total_batches").integer();
  loaders.clear();
  for (const auto& one : state.at("loaders").list())
    loaders.push_back({.dataset = one.at("dataset").text(),
                       .epoch = one.at("epoch").integer(),
                       .samples = one.at("samples").integer(),
                       .seed = one.at("seed").as<uint64_t>()});
  book.emplace(latest);
  book->add_state_dict(state.at("training"));
  book->metrics().add_state_dict(state.at("metric_objects"));
}

/// Called before the first batch of a window.
void Core::note_window() {
  window_.begin = {};
  if (options.accumulate_grad_batches == 1 || !inputs_.module->automatic_optimization) return;
  window_.begin = {
      .batches = progress.batches, .total_batches = progress.total_batches, .book = training_book_.snapshot()};
  for (const auto& loader : setup_data(StepKind::training).loaders)
    window_.begin.loaders.push_back(loader->save_position());
}

/// Goes back to the beginning of the open window: its batches, and what followed the last of them, are repeated.
void Core::go_back_to_window_begin() {
  const auto& loaders = setup_data(StepKind::training).loaders;
  for (std::size_t i = 0; i < loaders.size() && loaders.size() == window_.begin.loaders.size(); ++i)
    loaders[i]->load_position(window_.begin.loaders[i]);
  if (window_.begin.book)
    progress.batches = window_.begin.batches, progress.total_batches = window_.begin.total_batches;
  window_.begins = true;
  window_.has_loss = false;
  progress.point = SavePoint::none;
}

/// Sets the number of completed batches of the current epoch from the loaders: it depends on the number of ranks.
void Core::count_batches_done() {
  const auto& prepared = setup_data(StepKind::training);
  if (progress.batches == 0) return;
  const bool in_turn = prepared.combined.mode == LoaderMode::sequential;
  int64_t batches = 0;
  for (const auto& loader : prepared.loaders) {
    const bool over = loader->epoch() > progress.epoch;
    if (over && (!in_turn || !loader->known_size())) continue;
    const auto done = over ? *loader->known_size() : loader->num_yielded();
    batches = in_turn ? batches + done : std::max(batches, done);
  }
  if (batches > 0) progress.batches = batches;
}

}  // namespace muster::trainer
