#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/trainer/data_module.h"
#include "muster/trainer/detail/main_call.h"
#include "muster/trainer/detail/members.h"
#include "muster/trainer/load_from_checkpoint.h"
#include "muster/trainer/module.h"
#include "muster/trainer/trainer.h"
#include "muster/tree/detail/named_fields.h"

/// The fields of plain structs as options. The compiler supplies their names.
namespace muster::trainer {

template <class V>
concept option_scalar = std::is_arithmetic_v<V> || std::same_as<V, std::string>;
template <class V>
concept option_optional = requires(V v) { v.has_value(); } && option_scalar<typename V::value_type>;
template <class V>
concept option_list =
    !std::same_as<V, std::string> && requires(V v) { v.emplace_back(); } && option_scalar<typename V::value_type>;

template <class V>
std::string type_of_field() {
  if constexpr (std::same_as<V, bool>) return "true or false";
  else if constexpr (std::integral<V>) return "whole number";
  else if constexpr (std::floating_point<V>) return "number";
  else if constexpr (std::same_as<V, std::string>) return "text";
  else if constexpr (option_optional<V>) return type_of_field<typename V::value_type>() + " or none";
  else return "list: " + type_of_field<typename V::value_type>();
}

template <std::integral V>
std::string read_whole(const std::string& text, V& value) {
  using Wide = std::conditional_t<std::is_signed_v<V>, int64_t, uint64_t>;
  using Limits = std::numeric_limits<V>;
  Wide wide = 0;
  if (!options::Value<Wide>::read(text, wide).empty() || !std::in_range<V>(wide))
    return "a whole number from " + std::to_string(Limits::min()) + " to " + std::to_string(Limits::max());
  value = static_cast<V>(wide);
  return "";
}

template <std::floating_point V>
std::string read_number(const std::string& text, V& value) {
  double wide = 0;
  if (auto wanted = options::Value<double>::read(text, wide); !wanted.empty()) return wanted;
  value = static_cast<V>(wide);
  return std::isinf(value) && !std::isinf(wide) ? "a number that its type holds" : "";
}

template <class V>
std::string read_field(const std::string& text, V& value) {
  if constexpr (std::same_as<V, bool>) {
    return options::Value<bool>::read(text, value);
  } else if constexpr (std::integral<V>) {
    return read_whole(text, value);
  } else if constexpr (std::floating_point<V>) {
    return read_number(text, value);
  } else if constexpr (std::same_as<V, std::string>) {
    value = text;
    return "";
  } else if constexpr (option_optional<V>) {
    typename V::value_type given{};
    const bool none = text == "none" || text == "null";
    const auto wanted = none ? "" : read_field(text, given);
    if (!wanted.empty()) return wanted + ", or none,";
    value = none ? V() : V(std::move(given));
    return "";
  } else {
    std::vector<std::string> items;
    auto wanted = read_items(text, items);
    value.clear();
    for (const auto& item : items) {
      typename V::value_type one{};
      if (wanted.empty()) wanted = read_field(item, one);
      value.push_back(std::move(one));
    }
    return wanted;
  }
}

template <class V>
std::string write_field(const V& value) {
  if constexpr (std::same_as<V, bool>) {
    return options::Value<bool>::write(value);
  } else if constexpr (std::integral<V>) {
    return std::to_string(value);
  } else if constexpr (std::floating_point<V>) {
    char text[64];  // the shortest text that reads back as the same number
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  } else if constexpr (std::same_as<V, std::string>) {
    return value;
  } else if constexpr (option_optional<V>) {
    return value ? write_field(*value) : "none";
  } else {
    std::vector<std::string> items;
    for (const auto& one : value) items.push_back(write_field<typename V::value_type>(one));
    return options::Value<std::vector<std::string>>::write(items);
  }
}

template <class V>
inline constexpr bool is_option_value = option_scalar<V> || option_optional<V> || option_list<V>;

template <class S>
void add_fields(std::vector<OptionField>& all, const std::string& prefix, S& values) {
  static_assert(tree::named_fields<S>,
                "an option is a number, a bool, a text, a list or optional of such, or a plain struct of one to eight "
                "of them: put more into structs within");
  if constexpr (tree::named_fields<S>) {
    const auto add = [&]<class V>(std::string_view name, V& field) {
      const auto full = prefix + std::string(name);
      if constexpr (!is_option_value<V>) add_fields(all, full + ".", field);
      else
        all.push_back({{.name = full,
                        .takes_list = option_list<V>,
                        .type = type_of_field<V>(),
                        .is_switch = std::same_as<V, bool>},
                       [&field](const std::string& text) { return read_field(text, field); },
                       [&field] { return write_field(field); }});
    };
    const auto refs = tree::fields(values);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (add(tree::field_names<S>[I], std::get<I>(refs)), ...);
    }(std::make_index_sequence<tree::field_count<S>>());
  }
}

/// The fields of a plain struct, in declaration order. Requires: `values` outlives them and does not move.
template <class S>
std::vector<OptionField> fields_of(S& values) {
  std::vector<OptionField> all;
  add_fields(all, "", values);
  return all;
}

/// Stands for the data module of a program whose module has the loaders.
struct NoData {};

/// The options of T, if it has any, and how to create a T.
template <class T>
struct HeldOptions {
  options_of<T> values = {};
  std::vector<OptionField> fields() {
    if constexpr (has_options<T>) return fields_of(values);
    else return {};
  }
  std::shared_ptr<T> make() const {
    if constexpr (has_options<T>) {
      static_assert(std::constructible_from<T, const options_of<T>&>,
                    "this class has a struct `Options`, so trainer_main makes it of one: give it a constructor that "
                    "takes const Options&");
      return std::make_shared<T>(values);
    } else {
      static_assert(std::default_initializable<T>,
                    "trainer_main makes an object from nothing, or from its plain struct `Options`: give this class "
                    "one of these constructors");
      return std::make_shared<T>();
    }
  }
};

template <class M, class D, StepKind K>
inline constexpr bool main_runs = Members<K>::Step::template in<M> && Members<K>::Loader::template in<D>;
template <class M, class D>
inline constexpr bool main_runs<M, D, StepKind::predict> =
    (member::predict_step::in<M> || member::forward::in<M>)&&member::predict_dataloader::in<D>;

template <class M, class D>
MainProgram main_program(HeldOptions<M>& model, std::vector<OptionField> data, const TrainerOptions& defaults) {
  MainProgram program{.runs = {main_runs<M, D, StepKind::training>, main_runs<M, D, StepKind::validation>,
                               main_runs<M, D, StepKind::test>, main_runs<M, D, StepKind::predict>},
                      .trainer = defaults,
                      .model = model.fields(),
                      .data = std::move(data)};
  if constexpr (has_options<M>)
    program.load_model_options = [&model](const std::filesystem::path& checkpoint) {
      if (const auto saved = saved_hyperparameters(checkpoint); !saved.empty()) tree::load_fields(model.values, saved);
    };
  return program;
}

template <class M, class D>
void run_main(Trainer& trainer, const MainCall& call, const std::shared_ptr<M>& module,
              const std::shared_ptr<D>& data) {
  const EvaluateOptions how{.ckpt_path = call.ckpt_path, .return_predictions = false};
  if (call.stage == Stage::fit) {
    if constexpr (main_runs<M, D, StepKind::training>)
      trainer.fit(module, data, FitOptions{.ckpt_path = call.ckpt_path});
  } else if (call.stage == Stage::validate) {
    if constexpr (main_runs<M, D, StepKind::validation>) print_metrics(trainer, trainer.validate(module, data, how));
  } else if (call.stage == Stage::test) {
    if constexpr (main_runs<M, D, StepKind::test>) print_metrics(trainer, trainer.test(module, data, how));
  } else if constexpr (main_runs<M, D, StepKind::predict>) {
    trainer.predict(module, data, how);
  }
}

}  // namespace muster::trainer

namespace muster {

/// Runs a whole program, like Lightning's LightningCLI:
///   int main(int argc, char** argv) { return muster::trainer_main<Lit, Data>(argc, argv); }
/// The subcommands are fit, validate, test and predict: those for which the module M has the step and the data module D
/// has the loader (without D, the module has the loaders). A class with a plain struct `Options` is constructed from
/// it, and the fields are options of the program: --model.rate 0.1, --data.batch_size 32. Options of the Trainer are
/// --trainer.max_epochs 3. `--config FILE` reads files of LightningCLI, `--print_config` writes one, `--help` shows all
/// options. A flag overrides a variable, which overrides a file, which overrides `defaults`; callbacks can be given
/// only in `defaults`. Predictions go to callbacks and hooks only; validate and test print the logged metrics. See
/// docs/decisions/0119-a-program-of-one-line.md.
/// Returns the exit code: 0, or 2 after a message (MU500) that lists everything that is wrong with the call, before a
/// Trainer is created or another rank is started.
/// Requires: it is called first in main(), before another thread is started.
/// Throws: as the Trainer; what the program's classes throw. The program need not catch it.
template <class M, class D = M>
int trainer_main(int argc, char** argv, const TrainerOptions& defaults = {}) {
  static_assert(std::derived_from<M, TrainerModule>, "trainer_main<M> takes a class derived from TrainerModule");
  constexpr bool has_data = !std::same_as<M, D>;
  static_assert(!has_data || std::derived_from<D, DataModule>,
                "trainer_main<M, D> takes a class of data derived from muster::DataModule");
  trainer::HeldOptions<M> model;
  trainer::HeldOptions<std::conditional_t<has_data, D, trainer::NoData>> data;
  const auto call = trainer::read_main_call(
      {argv, argv + argc}, trainer::main_program<M, D>(model, data.fields(), defaults), Environment::of_process());
  if (!trainer::begin_main(call)) return *call.exit_code;
  Trainer trainer(call.trainer);
  trainer::seed_generators(call.seed);
  const auto module = model.make();
  if constexpr (has_data) trainer::run_main(trainer, call, module, data.make());
  else trainer::run_main(trainer, call, module, module);
  return 0;
}

}  // namespace muster
