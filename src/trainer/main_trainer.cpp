#include "base/options_text.h"
#include "limits.h"
#include "main_program.h"
#include "muster/base/error.h"
#include "muster/cluster/cluster.h"
#include "options/program_options.h"
#include "options/runtime_fields.h"
#include "options/trainer_fields.h"

namespace muster::trainer {
namespace {

using options::Description;
using options::RawOptions;

constexpr const char* kAccumulation = "gradient_accumulation.num_steps";

/// An option that a Trainer hands on to the runtime: a value that was found replaces the program's, which is reset.
struct OfRuntime {
  std::string name;
  std::function<void(TrainerOptions&)> reset;
};

/// The options that both have under the same name, and those of accumulation; the strategy is handled apart.
const std::vector<OfRuntime>& options_of_runtime() {
  static const std::vector<OfRuntime> all = [] {
    std::vector<OfRuntime> made;
    const auto add = [&](std::string name, auto get) {
      made.push_back({std::move(name), [get](TrainerOptions& options) {
                        const TrainerOptions defaults;
                        get(options) = get(defaults);
                      }});
    };
    runtime::visit_options([&](const std::string& name, auto get, const Description&) {
      constexpr bool in_both = requires(RuntimeOptions& to, const TrainerOptions& from) { get(to) = get(from); };
      if constexpr (in_both) {
        if (name != "strategy") add(name, get);
      }
    });
    add(kAccumulation, [](auto& options) -> auto& { return options.accumulate_grad_batches; });
    add("gradient_accumulation.weighting", [](auto& options) -> auto& { return options.gradient_weighting; });
    return made;
  }();
  return all;
}

bool is_of_runtime(std::string_view name) {
  return name == "strategy" ||
         std::ranges::any_of(options_of_runtime(), [&](const auto& one) { return one.name == name; });
}

bool is_of_strategy(const std::string& name) {
  return name == "strategy" || name.starts_with("ddp.") || name.starts_with("fsdp.");
}

std::string name_in_section(const std::string& name) {
  if (name == kAccumulation) return "accumulate_grad_batches";
  return name.starts_with("trainer.") ? name.substr(8) : name;
}

class RequestReader {
 public:
  RequestReader(const TrainerOptions& defaults, const Environment& variables) : variables_(variables) {
    request_.options = defaults;
  }

  TrainerRequest read(const MainSources& sources) {
    auto in_file = sources.trainer_file;
    leave_ranks_to_launcher(in_file);
    attempt([&] {
      const auto line = options::read_line(variables_.find(options::kLineVariable).value_or(""));
      given_ = runtime::find_given_options({.flag_line = sources.trainer_flags,
                                            .line = line,
                                            .variables = variables_,
                                            .file = options::File::of_section("trainer", std::move(in_file))},
                                           "trainer");
    });
    read_own();
    check_those_of_runtime();
    if (request_.problems.empty()) attempt([&] { checked(request_.options); });
    if (request_.problems.empty()) attempt([&] { finish(); });
    return std::move(request_);
  }

 private:
  /// Collects an error of f. `place`: where the value was found, added unless the message already has it.
  template <class F>
  void attempt(const F& f, const std::string& place = "") {
    try {
      f();
    } catch (const Error& error) {
      const std::string text = error.what();
      request_.problems.push_back(text.find(place) == std::string::npos ? place + ": " + text : text);
    }
  }

  /// True for "auto", "-1", the number itself, or a list of that many devices.
  static bool is_count(const std::string& text, int count) {
    if (text == "auto" || text == "-1" || text == std::to_string(count)) return true;
    return count > 1 && std::count(text.begin(), text.end(), ',') == count - 1;
  }

  /// A file is written for a program that starts its own ranks; a launcher that has started them takes precedence.
  void leave_ranks_to_launcher(RawOptions& in_file) {
    ClusterEnvironment cluster;
    try {
      cluster = read_cluster_environment(variables_);
    } catch (const Error&) {
      return;  // the Trainer reports the error
    }
    if (cluster.launcher == LauncherKind::none) return;
    const auto leave = [&](const char* name, int count) {
      const auto found = in_file.extract(name);
      if (found.empty() || is_count(found.mapped().text, count)) return;
      request_.notes.push_back(found.mapped().place + ": " + name + " " + found.mapped().text +
                               " has no effect, since the launcher (" + std::string(to_string(cluster.launcher)) +
                               ") has started " + std::to_string(count));
    };
    leave("devices", cluster.local_world_size);
    leave("num_nodes", cluster.nodes);
  }

  void read_own() {
    for (const auto& option : option_table().options) {
      const auto found = given_.find(option.description.name);
      if (found == given_.end()) continue;
      const auto wanted = option.read(request_.options, found->second.text);
      if (!wanted.empty()) attempt([&] { options::refuse(option.description, found->second, wanted); });
    }
  }

  void check_those_of_runtime() {
    RawOptions of_strategy;
    for (const auto& [name, found] : given_)
      if (is_of_strategy(name)) of_strategy[name] = found;
      else if (!name.starts_with("trainer."))
        attempt([&, &one = name, &text = found] { runtime::check_given_options({{one, text}}); }, found.place);
    const auto by_name = of_strategy.find("strategy");
    const auto place = by_name == of_strategy.end() ? "" : by_name->second.place;
    if (!of_strategy.empty()) attempt([&] { runtime::check_given_options(of_strategy); }, place);
  }

  void forget_what_was_found() {
    auto& values = request_.options;
    for (const auto& one : options_of_runtime())
      if (given_.contains(one.name)) one.reset(values);
    const auto found = given_.find("strategy");
    if (found == given_.end()) return;
    const auto requested = Strategy::parse(found->second.text);
    // With an unchanged name, the program's own strategy options apply.
    if (values.strategy.custom() || requested.name() != values.strategy.name()) values.strategy = "auto";
  }

  void finish() {
    forget_what_was_found();
    const auto texts =
        runtime::written_options(runtime::with_given_options(runtime_options(request_.options), given_, variables_));
    for (const auto& option : runtime::program_options()) {
      const auto text = texts.find(option.name);
      if (text != texts.end() && (is_of_runtime(option.name) || given_.contains(option.name)))
        add_line(option, text->second);
    }
    const auto own = written_options(request_.options);
    for (const auto& [option, read, write] : option_table().options)
      if (!option.code_only) add_line(option, own.at(option.name));
    std::ranges::sort(request_.config, {}, &ConfigLine::key);
    request_.line = options::write_line(given_);
  }

  void add_line(const Description& option, const std::string& text) {
    request_.config.push_back(
        {.key = "trainer." + name_in_section(option.name), .text = text, .may_be_none = option.may_be_none()});
  }

  RawOptions given_;
  TrainerRequest request_;
  const Environment& variables_;
};

}  // namespace

TrainerRequest trainer_request(const TrainerOptions& defaults, const MainSources& sources,
                               const Environment& variables) {
  return RequestReader(defaults, variables).read(sources);
}

std::vector<Description> trainer_arguments(const TrainerOptions& defaults) {
  auto texts = written_options(defaults);
  texts.merge(runtime::written_options(runtime::with_given_options(runtime_options(defaults), {}, {})));
  std::vector<Description> all;
  for (auto option : runtime::program_options()) {
    if (option.code_only || !(is_of_runtime(option.name) || option.name.starts_with("trainer."))) continue;
    if (const auto text = texts.find(option.name); text != texts.end()) option.default_text = text->second;
    option.name = "trainer." + name_in_section(option.name);
    all.push_back(std::move(option));
  }
  std::ranges::sort(all, {}, &Description::name);
  return all;
}

}  // namespace muster::trainer
