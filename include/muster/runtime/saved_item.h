#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/data/data_loader.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"
#include "muster/tree/state.h"

namespace muster {

class Checkpoint;
struct TensorShard;

namespace runtime {
class AtomicLoad;

/// Where a state comes from, and how it is loaded.
struct LoadFrom {
  const Checkpoint* checkpoint = nullptr;  ///< the checkpoint with the sharded tensors; borrowed
  bool strict = true;                      ///< a name that only the checkpoint or only the program has is an error
};
}  // namespace runtime

/// An item that a program saves and loads under a name: a handle that prepare() returned, an object with state_dict()
/// and load_state_dict(), or a plain value (a number, a string, a State). A variable or object is borrowed: saving
/// reads it, and loading writes to it. A temporary can only be saved.
class SavedItem {
 public:
  template <class M>
  SavedItem(const std::string& name, const Model<M>& model) : SavedItem(of(name, model.prepared())) {}
  SavedItem(const std::string& name, const Optimizer& optimizer);
  SavedItem(std::string name, const Scheduler& scheduler);
  template <class B>
  SavedItem(std::string name, const DataLoader<B>& loader) : SavedItem(of(std::move(name), loader.state())) {}
  template <Stateful T>
  SavedItem(std::string name, T& object)
      : SavedItem(
            std::move(name), [&object]() -> State { return object.state_dict(); },
            [&object](const State& state) { object.load_state_dict(state); }) {}
  /// Does not compile; the message gives the names of the functions.
  template <FormerlyStateful T>
  SavedItem(const std::string&, T&) {
    static_assert(!FormerlyStateful<T>,
                  "an object that is saved has state_dict() and load_state_dict(state), which were called save_state() "
                  "and load_state()");
  }
  template <class T>
    requires(std::is_arithmetic_v<std::remove_cvref_t<T>> || std::same_as<std::remove_cvref_t<T>, std::string> ||
             std::same_as<std::remove_cvref_t<T>, State>)
  SavedItem(std::string name, T&& value) : name_(std::move(name)) {
    using V = std::remove_cvref_t<T>;
    if constexpr (!std::is_lvalue_reference_v<T>) {
      save_ = [value](auto&) -> State { return value; };
    } else {
      save_ = [&value](auto&) -> State { return value; };
      if constexpr (!std::is_const_v<std::remove_reference_t<T>>)
        load_at_end([&value](const State& state) { return [&value, taken = taken_as<V>(state)] { value = taken; }; });
    }
  }
  /// An item that is saved and loaded by two functions.
  SavedItem(std::string name, const std::function<State()>& save, const std::function<void(const State&)>& load);
  SavedItem(std::string name, const char* text) : SavedItem(std::move(name), std::string(text)) {}

  const std::string& name() const noexcept { return name_; }
  /// Returns the state, and appends sharded tensors to `shards`.
  State save(std::vector<TensorShard>& shards) const { return save_(shards); }
  /// Throws: CheckpointError (MU240, MU131, MU208, MU209), UsageError (MU114, MU138) if the state is not that of such
  /// an item, UsageError (MU245) for a temporary or a constant, and what the object's own load_state_dict() throws. The
  /// caller must then call load.undo().
  void load(const State& state, const runtime::LoadFrom& from, runtime::AtomicLoad& load) const;

 private:
  using Save = std::function<State(std::vector<TensorShard>&)>;
  using Load = std::function<void(const State&, const runtime::LoadFrom&, runtime::AtomicLoad&)>;
  SavedItem(std::string name, Save save, Load load)
      : name_(std::move(name)), save_(std::move(save)), load_(std::move(load)) {}
  /// Loads by `read`, which checks a state and returns the function that applies it.
  void load_at_end(std::function<std::function<void()>(const State&)> read);
  static SavedItem of(const std::string& name, const std::shared_ptr<runtime::PreparedModel>& model);
  static SavedItem of(std::string name, const std::shared_ptr<data::LoaderState>& loader);
  template <class V>
  static V taken_as(const State& state) {
    if constexpr (std::same_as<V, State>) return state;
    else return state.as<V>();
  }

  std::string name_;
  Save save_;
  Load load_;
};

}  // namespace muster
