#include "muster/optim/optimizer_state.h"

#include <algorithm>
#include <deque>
#include <span>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "muster/base/error.h"
#include "muster/optim/elementwise.h"
#include "optim/rule.h"

/// The fields of LibTorch's optimizers, under Python's names and in Python's order, and those of ElementwiseOptimizer.
namespace muster::optim {

/// The initial value of a field that only Python has.
struct PythonOnly {
  std::optional<bool> value;
};

namespace {

void each_option(torch::optim::SGDOptions& o, auto&& f) {
  f("lr", o.lr());
  f("momentum", o.momentum());
  f("dampening", o.dampening());
  f("weight_decay", o.weight_decay());
  f("nesterov", o.nesterov());
  f("maximize", PythonOnly{false});
  f("foreach", PythonOnly{});
  f("differentiable", PythonOnly{false});
  f("fused", PythonOnly{});
}

template <class O>
  requires(std::same_as<O, torch::optim::AdamOptions> || std::same_as<O, torch::optim::AdamWOptions>)
void each_option(O& o, auto&& f) {
  f("lr", o.lr());
  f("betas", o.betas());
  f("eps", o.eps());
  f("weight_decay", o.weight_decay());
  f("amsgrad", o.amsgrad());
  f("maximize", PythonOnly{false});
  f("foreach", PythonOnly{});
  f("capturable", PythonOnly{false});
  f("differentiable", PythonOnly{false});
  f("fused", PythonOnly{});
  f("decoupled_weight_decay", PythonOnly{std::same_as<O, torch::optim::AdamWOptions>});
}

void each_option(torch::optim::AdagradOptions& o, auto&& f) {
  f("lr", o.lr());
  f("lr_decay", o.lr_decay());
  f("eps", o.eps());
  f("weight_decay", o.weight_decay());
  f("initial_accumulator_value", o.initial_accumulator_value());
  f("foreach", PythonOnly{});
  f("maximize", PythonOnly{false});
  f("differentiable", PythonOnly{false});
  f("fused", PythonOnly{});
}

void each_option(torch::optim::RMSpropOptions& o, auto&& f) {
  f("lr", o.lr());
  f("momentum", o.momentum());
  f("alpha", o.alpha());
  f("eps", o.eps());
  f("centered", o.centered());
  f("weight_decay", o.weight_decay());
  f("capturable", PythonOnly{false});
  f("foreach", PythonOnly{});
  f("maximize", PythonOnly{false});
  f("differentiable", PythonOnly{false});
}

void each_option(torch::optim::LBFGSOptions& o, auto&& f) {
  f("lr", o.lr());
  f("max_iter", o.max_iter());
  f("max_eval", o.max_eval());
  f("tolerance_grad", o.tolerance_grad());
  f("tolerance_change", o.tolerance_change());
  f("history_size", o.history_size());
  f("line_search_fn", o.line_search_fn());
}

void each_option(ElementwiseOptions& o, auto&& f) {
  for (auto& [name, value] : o.values()) f(name.c_str(), value);
}

void each_state(torch::optim::SGDParamState& s, auto&& f) { f("momentum_buffer", s.momentum_buffer()); }

template <class S>
  requires(std::same_as<S, torch::optim::AdamParamState> || std::same_as<S, torch::optim::AdamWParamState>)
void each_state(S& s, auto&& f) {
  f("step", s.step());
  f("exp_avg", s.exp_avg());
  f("exp_avg_sq", s.exp_avg_sq());
  f("max_exp_avg_sq", s.max_exp_avg_sq());
}

void each_state(torch::optim::AdagradParamState& s, auto&& f) {
  f("step", s.step());
  f("sum", s.sum());
}

void each_state(torch::optim::RMSpropParamState& s, auto&& f) {
  f("step", s.step());
  f("square_avg", s.square_avg());
  f("momentum_buffer", s.momentum_buffer());
  f("grad_avg", s.grad_avg());
}

void each_state(torch::optim::LBFGSParamState& s, auto&& f) {
  f("func_evals", s.func_evals());
  f("n_iter", s.n_iter());
  f("d", s.d());
  f("t", s.t());
  f("old_dirs", s.old_dirs());
  f("old_stps", s.old_stps());
  f("ro", s.ro());
  f("H_diag", s.H_diag());
  f("prev_flat_grad", s.prev_flat_grad());
  f("prev_loss", s.prev_loss());
  f("al", s.al());
}

void each_state(ElementwiseState& s, auto&& f) {
  f("step", s.step);
  for (auto& [name, tensor] : s.tensors) f(name.c_str(), tensor);
}

/// Calls f(options as their known class, std::type_identity of the state class). Returns false for any other class.
template <class F>
bool with_known_class(torch::optim::OptimizerOptions& options, F&& f) {
  namespace lib = torch::optim;
  const auto attempt = [&]<class O, class S>(std::type_identity<O>, std::type_identity<S> state) {
    auto* known = dynamic_cast<O*>(&options);
    if (known) f(*known, state);
    return known != nullptr;
  };
  return attempt(std::type_identity<lib::SGDOptions>(), std::type_identity<lib::SGDParamState>()) ||
         attempt(std::type_identity<lib::AdamOptions>(), std::type_identity<lib::AdamParamState>()) ||
         attempt(std::type_identity<lib::AdamWOptions>(), std::type_identity<lib::AdamWParamState>()) ||
         attempt(std::type_identity<lib::AdagradOptions>(), std::type_identity<lib::AdagradParamState>()) ||
         attempt(std::type_identity<lib::RMSpropOptions>(), std::type_identity<lib::RMSpropParamState>()) ||
         attempt(std::type_identity<lib::LBFGSOptions>(), std::type_identity<lib::LBFGSParamState>()) ||
         attempt(std::type_identity<ElementwiseOptions>(), std::type_identity<ElementwiseState>());
}

}  // namespace
}  // namespace muster::optim

namespace muster {
namespace {

namespace lib = torch::optim;

/// A std::vector or std::deque of tensors.
template <class L>
concept tensor_list = requires(L& list) { list.push_back(at::Tensor()); };

template <class T>
  requires(std::is_arithmetic_v<T> || std::same_as<T, std::string>)
State written(const T& value) {
  return value;
}

State written(const at::Tensor& value) { return value.defined() ? State(value) : State(); }

State written(const std::tuple<double, double>& value) { return State::List{std::get<0>(value), std::get<1>(value)}; }

template <tensor_list L>
State written(const L& tensors) {
  State::List list;
  for (const auto& tensor : tensors) list.push_back(written(tensor));
  return list;
}

template <class T>
State written(const std::optional<T>& value) {
  return value ? written(*value) : State();
}

State written(const optim::PythonOnly& value) { return written(value.value); }

struct Writer {
  State::Map& to;
  template <class T>
  void operator()(const char* name, const T& value) const {
    auto state = written(value);
    // Python leaves empty fields out of the state.
    if constexpr (std::same_as<T, at::Tensor>)
      if (state.empty()) return;
    to.emplace_back(name, std::move(state));
  }
};

/// Reads a number, which Python may keep in a tensor.
double read_number(const State& from) {
  return from.kind() == State::Kind::tensor ? from.tensor().item<double>() : from.number();
}

at::Tensor read_tensor(const State& from) {
  if (from.empty()) return {};
  return from.kind() == State::Kind::tensor ? from.tensor() : at::scalar_tensor(read_number(from), at::kDouble);
}

/// Sets the fields of an options or state object from the named states. Shares the tensors of the state.
class Reader {
 public:
  explicit Reader(const State& from) : from_(from) {}

  void operator()(const char* name, at::Tensor& value) const {
    const auto* found = from_.find(name);
    value = found ? read_tensor(*found) : at::Tensor();
  }
  void operator()(const char*, const optim::PythonOnly&) const {}
  void operator()(const char* name, double& value) const { value = read_number(from_.at(name)); }
  void operator()(const char* name, bool& value) const { value = from_.at(name).boolean(); }
  void operator()(const char* name, int64_t& value) const {
    const auto& found = from_.at(name);
    value = found.kind() == State::Kind::integer ? found.integer() : static_cast<int64_t>(read_number(found));
  }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    const auto& list = from_.at(name).list();
    if (list.size() != 2)
      throw CheckpointError("MU131", "an optimizer's saved \"" + std::string(name) + "\" are not two numbers");
    value = {read_number(list[0]), read_number(list[1])};
  }
  void operator()(const char* name, std::string& value) const { value = from_.at(name).text(); }
  template <tensor_list L>
  void operator()(const char* name, L& value) const {
    value.clear();
    for (const auto& entry : from_.at(name).list()) value.push_back(read_tensor(entry));
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) const {
    value.reset();
    if (const auto* found = from_.find(name); !found || found->empty()) return;
    (*this)(name, value.emplace());
  }

 private:
  const State& from_;
};

/// Calls f for each tensor of a state object.
void each_tensor(auto& state, auto&& f) {
  const auto each = [&](auto&& list) {
    for (auto& tensor : list)
      if (tensor.defined()) f(tensor);
  };
  optim::each_state(state, [&]<class T>(const char*, T& value) {
    if constexpr (std::same_as<T, at::Tensor>) each(std::span(&value, 1));
    else if constexpr (tensor_list<T>) each(value);
    else if constexpr (std::same_as<T, std::optional<std::vector<at::Tensor>>>)
      if (value) each(*value);
  });
}

/// Replaces a tensor by a copy that the optimizer owns. The copy has the parameter's memory layout if it has its shape.
void place(at::Tensor& value, const at::Tensor& parameter, at::ScalarType dtype) {
  const auto options = parameter.options().dtype(dtype).requires_grad(false);
  const auto own =
      value.sizes() == parameter.sizes() ? at::empty_like(parameter, options) : at::empty(value.sizes(), options);
  value = own.copy_(value);
}

lib::Optimizer& mutable_of(const lib::Optimizer& optimizer) { return const_cast<lib::Optimizer&>(optimizer); }

bool is_known(const lib::Optimizer& optimizer) {
  for (auto& group : mutable_of(optimizer).param_groups())
    if (!optim::with_known_class(group.options(), [](auto&, auto) {})) return false;
  return true;
}

std::string archive_of(const lib::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  torch::serialize::InputArchive back;
  std::istringstream again(text.str());
  back.load_from(again);
  if (back.keys().empty())
    throw CheckpointError("MU132",
                          "the optimizer class " + optim::class_name(optimizer) +
                              " does not save itself: override save(OutputArchive&) and load(InputArchive&) in it");
  return text.str();
}

std::function<void()> prepare_archive(lib::Optimizer& optimizer, const State& state) {
  const auto name = optim::class_name(optimizer);
  if (!state.find("archive") || state.at("class").text() != name)
    throw CheckpointError("MU132",
                          "an optimizer of class " + name + " was given the saved state of " +
                              (state.find("class") ? "one of class " + state.at("class").text() : "another class"));
  auto archive = std::make_shared<torch::serialize::InputArchive>();
  std::istringstream text(state.at("archive").text());
  archive->load_from(text);
  return [&optimizer, archive] { optimizer.load(*archive); };
}

State entry_of(lib::OptimizerOptions& options, lib::OptimizerParamState& kept) {
  State::Map entry;
  optim::with_known_class(options, [&]<class S>(auto&, std::type_identity<S>) {
    optim::each_state(dynamic_cast<S&>(kept), Writer{entry});
  });
  return entry;
}

template <class S>
std::shared_ptr<S> empty_state(const lib::Optimizer& optimizer) {
  if constexpr (std::same_as<S, ElementwiseState>)
    if (const auto* own = dynamic_cast<const ElementwiseOptimizer*>(&optimizer))
      return std::make_shared<S>(own->state_names());
  return std::make_shared<S>();
}

/// Calls f for each tensor of this parameter's state.
void visit_state(lib::Optimizer& optimizer, const at::Tensor& parameter, const auto& f) {
  const auto kept = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (kept == optimizer.state().end()) return;
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups())
    if (std::ranges::any_of(group.params(), [&](const at::Tensor& own) { return own.is_same(parameter); }))
      optim::with_known_class(group.options(), [&]<class S>(auto&, std::type_identity<S>) {
        each_tensor(dynamic_cast<S&>(*kept->second), f);
      });
}

void require_fit(bool fits, const std::string& what) {
  if (!fits)
    throw CheckpointError(
        "MU131", "a saved optimizer state does not fit: " + what + "; build the optimizer as when it was saved");
}

/// What a load will put in place once everything was read.
struct Loaded {
  std::vector<std::unique_ptr<lib::OptimizerOptions>> options;
  std::vector<std::function<void()>> states;
};

using DtypeOf = std::function<at::ScalarType(const at::Tensor&)>;

void read_group(lib::Optimizer& optimizer, size_t g, const State& saved, const State& states, const DtypeOf& dtype_of,
                Loaded& loaded) {
  const auto& group = optimizer.param_groups()[g];
  const auto& numbers = saved.at("params").list();
  require_fit(numbers.size() == group.params().size(), "it has a group of " + std::to_string(numbers.size()) +
                                                           " parameters where the optimizer has " +
                                                           std::to_string(group.params().size()));
  loaded.options.push_back(group.options().clone());
  optim::with_known_class(*loaded.options.back(), [&]<class S>(auto& options, std::type_identity<S>) {
    optim::each_option(options, Reader(saved));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto* entry = states.find(std::to_string(numbers[i].integer()));
      if (!entry || entry->map().empty()) continue;
      auto made = empty_state<S>(optimizer);
      optim::each_state(*made, Reader(*entry));
      const auto& parameter = group.params()[i];
      loaded.states.emplace_back([&optimizer, made, parameter, dtype = dtype_of(parameter)] {
        each_tensor(*made, [&](at::Tensor& value) { place(value, parameter, dtype); });
        optimizer.state()[parameter.unsafeGetTensorImpl()] = std::make_unique<S>(std::move(*made));
      });
    }
  });
}

}  // namespace

State options_of(lib::OptimizerParamGroup& group) {
  State::Map saved;
  const bool known = optim::with_known_class(group.options(),
                                             [&](auto& options, auto) { optim::each_option(options, Writer{saved}); });
  return known ? State(std::move(saved)) : State();
}

void set_options(lib::OptimizerParamGroup& group, const State& saved) {
  optim::with_known_class(group.options(), [&](auto& options, auto) { optim::each_option(options, Reader(saved)); });
}

State state_dict(const lib::Optimizer& optimizer) {
  if (!is_known(optimizer))
    return State::Map{{"class", optim::class_name(optimizer)}, {"archive", archive_of(optimizer)}};
  State::Map states;
  State::List groups;
  int64_t number = 0;
  for (auto& group : mutable_of(optimizer).param_groups()) {
    State saved = options_of(group);
    State::List numbers;
    for (const auto& parameter : group.params()) {
      const auto kept = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (kept != optimizer.state().end())
        states.emplace_back(std::to_string(number), entry_of(group.options(), *kept->second));
      numbers.emplace_back(number++);
    }
    saved.set("params", std::move(numbers));
    groups.emplace_back(std::move(saved));
  }
  return State::Map{{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

std::function<void()> prepare_load(lib::Optimizer& optimizer, const State& state) {
  return prepare_load(optimizer, state, [](const at::Tensor& parameter) { return parameter.scalar_type(); });
}

std::function<void()> prepare_load(lib::Optimizer& optimizer, const State& state, const DtypeOf& dtype_of) {
  if (!is_known(optimizer)) return prepare_archive(optimizer, state);
  const auto& groups = state.at("param_groups").list();
  require_fit(groups.size() == optimizer.param_groups().size(), "it has " + std::to_string(groups.size()) +
                                                                    " parameter groups and the optimizer " +
                                                                    std::to_string(optimizer.param_groups().size()));
  auto loaded = std::make_shared<Loaded>();
  for (size_t g = 0; g < groups.size(); ++g) read_group(optimizer, g, groups[g], state.at("state"), dtype_of, *loaded);
  return [&optimizer, loaded] {
    const at::NoGradGuard no_grad;
    for (size_t g = 0; g < loaded->options.size(); ++g)
      optimizer.param_groups()[g].set_options(std::move(loaded->options[g]));
    optimizer.state().clear();
    for (const auto& put : loaded->states) put();
  };
}

void change_state(lib::Optimizer& optimizer, const at::Tensor& parameter,
                  const std::function<at::Tensor(const at::Tensor&)>& f) {
  visit_state(optimizer, parameter, [&](at::Tensor& value) {
    if (value.sizes() == parameter.sizes()) value = f(value);
  });
}

void for_each_state_tensor(lib::Optimizer& optimizer, const at::Tensor& parameter,
                           const std::function<void(const at::Tensor&)>& f) {
  visit_state(optimizer, parameter, f);
}

void move_state(lib::Optimizer& optimizer, const at::Tensor& parameter) {
  visit_state(optimizer, parameter, [&](at::Tensor& value) { value = value.to(parameter.device()); });
}

void load_state_dict(lib::Optimizer& optimizer, const State& state) { prepare_load(optimizer, state)(); }

}  // namespace muster
