#include "config_questions.h"

#include <algorithm>

#include "base/options_text.h"
#include "muster/base/detail/options.h"

namespace muster::cli {
namespace {

AnswerCheck whole_number(int least, int most) {
  return [=](const std::string& answer) {
    int value = 0;
    const bool fits = options::Value<int>::read(answer, value).empty() && value >= least && value <= most;
    return fits ? "" : "give a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  };
}

std::string not_empty(const std::string& answer) { return answer.empty() ? "an answer is wanted" : ""; }

/// Checks for ids of accelerators, or "all".
AnswerCheck device_ids(int accelerators, int ranks) {
  return [=](const std::string& answer) -> std::string {
    if (answer == "all") return "";
    std::vector<int> ids;
    for (const auto& item : options::split_items(answer)) {
      int id = -1;
      const bool is_one = options::Value<int>::read(item, id).empty() && id >= 0 && id < accelerators;
      if (!is_one || std::count(ids.begin(), ids.end(), id) > 0)
        return "give all, or different ids from 0 to " + std::to_string(accelerators - 1) + ", such as 0,1";
      ids.push_back(id);
    }
    if (static_cast<int>(ids.size()) < ranks) return "name one for each of the " + std::to_string(ranks) + " ranks";
    return "";
  };
}

class Dialogue {
 public:
  Dialogue(const Questions& questions, int accelerators) : ask_(questions), accelerators_(accelerators) {}

  ConfigKeys run() {
    ask_device();
    ask_machines();
    ask_ranks();
    if (ranks_ > 1) ask_strategy();
    ask_training();
    return std::move(keys_);
  }

 private:
  void set(const std::string& key, const std::string& text) { keys_.emplace_back(key, text); }

  void ask_device() {
    on_cpu_ = accelerators_ == 0 ||
              ask_.choose("Which devices train?",
                          {"accelerators: " + std::to_string(accelerators_) + " on this machine", "CPU"}) == 1;
    if (accelerators_ == 0) std::printf("This machine has no accelerator, so it trains on the CPU.\n");
    if (on_cpu_) set("use_cpu", "true");
  }

  void ask_machines() {
    const auto answer = ask_.ask("How many machines train together?", "1", whole_number(1, 100000));
    set("num_machines", answer);
    machines_ = std::stoi(answer);
    if (machines_ == 1) return;
    set("machine_rank", ask_.ask("Which of them is this one, from 0?", "0", whole_number(0, machines_ - 1)));
    set("main_process_ip", ask_.ask("Host name or address of machine 0, as the others reach it?", "", not_empty));
    set("main_process_port", ask_.ask("Port on it?", "29400", whole_number(1, 65535)));
  }

  void ask_ranks() {
    const int here = on_cpu_ ? 1 : accelerators_;
    const auto answer = ask_.ask("How many ranks on all machines together?", std::to_string(here * machines_),
                                 [&](const std::string& text) {
                                   auto wrong = whole_number(1, 1000000)(text);
                                   if (!wrong.empty()) return wrong;
                                   const int ranks = std::stoi(text);
                                   if (ranks % machines_ != 0)
                                     return "give a multiple of " + std::to_string(machines_) + ", the machines";
                                   if (!on_cpu_ && ranks / machines_ > accelerators_)
                                     return "this machine has " + std::to_string(accelerators_) + " accelerators";
                                   return std::string();
                                 });
    set("num_processes", answer);
    ranks_ = std::stoi(answer);
    if (on_cpu_) return;
    const auto ids =
        ask_.ask("Which accelerators of this machine, by id?", "all", device_ids(accelerators_, ranks_ / machines_));
    if (ids != "all") set("gpu_ids", ids);
  }

  void ask_strategy() {
    static constexpr const char* kNames[] = {"auto", "ddp", "fsdp", "hsdp", "zero1", "zero2"};
    const auto chosen =
        ask_.choose("Which strategy?",
                    {"auto: as the program says, else ddp", "ddp: each rank holds the whole model",
                     "fsdp: parameters, gradients and states are sharded", "hsdp: fsdp over the ranks of each machine",
                     "zero1: states are sharded", "zero2: gradients and states are sharded"});
    if (chosen == 0) return;
    set("strategy", kNames[chosen]);
    if (chosen == 2 || chosen == 3) ask_units();
  }

  void ask_units() {
    const auto chosen = ask_.choose("Which submodules are gathered at a time?",
                                    {"blocks: the repeated blocks of the model", "classes: those of some classes",
                                     "size: those with at least so many elements"});
    if (chosen == 1)
      set("fsdp.unit_classes", ask_.ask("Names of the classes, such as EncoderLayer,DecoderLayer?", "", not_empty));
    if (chosen == 2)
      set("fsdp.unit_min_elements", ask_.ask("How many elements?", "100000000", whole_number(1, 2000000000)));
    if (!ask_.confirm("Free parameters after forward, and gather them again in backward?", true))
      set("fsdp.reshard_after_forward", "false");
  }

  void ask_training() {
    static constexpr const char* kPrecisions[] = {"no", "bf16", "fp16"};
    const auto chosen = ask_.choose(
        "Mixed precision?",
        {"no: as the program says, else float32", "bf16: compute in bfloat16", "fp16: float16 with loss scaling"});
    if (chosen > 0) set("mixed_precision", kPrecisions[chosen]);
    const auto steps =
        ask_.ask("Micro-batches in an accumulation window (1: as the program says)?", "1", whole_number(1, 1000000));
    if (steps != "1") set("gradient_accumulation_steps", steps);
    const auto folder = ask_.ask("Folder for the output of each rank (-: none)?", "-");
    if (folder != "-") set("log_dir", folder);
  }

  const Questions& ask_;
  int accelerators_;
  bool on_cpu_ = false;
  int machines_ = 1;
  int ranks_ = 1;
  ConfigKeys keys_;
};

}  // namespace

ConfigKeys asked_keys(const Questions& questions, int accelerators) { return Dialogue(questions, accelerators).run(); }

}  // namespace muster::cli
