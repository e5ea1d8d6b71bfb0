#include "saved_position.h"

#include <cstdint>

namespace muster::runtime {

State position_state(const data::LoaderState& loader) {
  const auto position = loader.save_position();
  return State::Map{
      {"epoch", position.epoch}, {"samples", position.samples}, {"seed", position.seed}, {"dataset", position.dataset}};
}

data::LoaderPosition position_from(const State& state) {
  return {.dataset = state.at("dataset").text(),
          .epoch = state.at("epoch").integer(),
          .samples = state.at("samples").integer(),
          .seed = state.at("seed").as<uint64_t>()};
}

void load_position(const std::shared_ptr<data::LoaderState>& loader, const data::LoaderPosition& position,
                   AtomicLoad& load) {
  load.now([&] { loader->load_position(position); },
           [loader, before = loader->save_position()] { loader->load_position(before); });
}

}  // namespace muster::runtime
