#include "options/words.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/strategy/options.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"
#include "options/strategy_request.h"

namespace muster::options {
namespace {

/// The names and flags of all options: "nodes", "--nodes", "num_nodes".
std::set<std::string> names_of_options() {
  std::set<std::string> names{"--config"};
  for (const auto& options : {run_option_table().descriptions(), runtime::program_options()})
    for (const auto& option : options) {
      names.insert({option.name, option.flag()});
      names.insert(option.aliases.begin(), option.aliases.end());
      if (option.is_switch) names.insert("--no-" + option.flag().substr(2));
    }
  return names;
}

TEST(ForeignWords, StandOnceAtTheirPlaceAndSayOursOrWhyNot) {
  std::set<std::tuple<Place, std::string_view>> words;
  for (const auto& word : foreign_words()) {
    EXPECT_TRUE(words.insert({word.place, word.word}).second) << word.word;
    EXPECT_TRUE(!word.text.empty() || word.follow == Follow::ignored) << word.word;
    EXPECT_TRUE(std::ranges::none_of(word.accepted, [](char c) { return c >= 'A' && c <= 'Z'; })) << word.word;
    EXPECT_EQ(find_foreign_word(word.place, word.word), &word);
  }
  EXPECT_TRUE(std::ranges::is_sorted(foreign_words(), {}, &ForeignWord::place));
  EXPECT_EQ(find_foreign_word(Place::run, "devices"), nullptr);
}

TEST(ForeignWords, NameOptionsThatExist) {
  const auto ours = names_of_options();
  for (const auto& word : foreign_words()) {
    if (word.follow == Follow::sharding) {
      EXPECT_NE(find_foreign_word(Place::sharding, word.text), nullptr) << word.word;
    }
    if (word.follow != Follow::option) continue;
    const std::string text(word.text);
    switch (word.place) {
      case Place::strategy:
        EXPECT_NE(std::ranges::find(Strategy::kNames, word.text), std::end(Strategy::kNames));
        break;
      case Place::sharding: EXPECT_TRUE(ours.contains("fsdp." + text)) << text; break;
      case Place::run: EXPECT_TRUE(ours.contains(text.substr(0, text.find_first_of(" ,;")))) << text; break;
      default: EXPECT_TRUE(ours.contains(text)) << text;
    }
  }
  for (const auto& word : foreign_words(Place::deepspeed)) {
    if (word.follow == Follow::in_code) {
      EXPECT_NE(find_foreign_word(Place::launch, word.text.substr(0, word.text.find(':'))), nullptr) << word.word;
    }
  }
}

TEST(ForeignWords, OfShardingAllHaveAReader) {
  for (const auto& word : foreign_words(Place::sharding)) {
    try {
      strategy::own_sharding_fields({{std::string(word.word), {"1", "here"}}});
    } catch (const ConfigError&) {
      EXPECT_NE(word.follow, Follow::ignored) << word.word;
    }
  }
}

TEST(ForeignWords, AskForNothingByTheirValue) {
  const auto& backend = *find_foreign_word(Place::launch, "dynamo_backend");
  EXPECT_TRUE(asks_for_nothing(backend, "NO"));
  EXPECT_TRUE(asks_for_nothing(backend, "False"));
  EXPECT_FALSE(asks_for_nothing(backend, "inductor"));
  EXPECT_FALSE(asks_for_nothing(*find_foreign_word(Place::launch, "aws_access_key_id"), "false"));
}

TEST(ForeignWords, OfLaunchersHaveOursOrARemark) {
  EXPECT_EQ(spelling_here("num_processes"), "--devices");
  EXPECT_EQ(spelling_here("nnodes"), "--nodes");
  EXPECT_EQ(spelling_here("no_python"), "nothing: the program is executed as it is");
  EXPECT_EQ(spelling_here("devices"), "");
}

std::string launcher_of(Tool tool) {
  switch (tool) {
    case Tool::accelerate: return "accelerate launch";
    case Tool::lightning: return "fabric run";
    case Tool::mpi: return "mpirun";
    case Tool::slurm: return "srun";
    default: return "torchrun";
  }
}

TEST(ForeignWords, OfLaunchersStandInTheReference) {
  std::string table = "| name | launcher | write |\n|---|---|---|\n";
  for (const auto& word : foreign_words(Place::run))
    table +=
        "| `" + std::string(word.word) + "` | " + launcher_of(word.tool) + " | " + spelling_here(word.word) + " |\n";
  std::ostringstream page;
  page << std::ifstream(MUSTER_SOURCE_DIR "/docs/reference/run.md").rdbuf();
  EXPECT_NE(page.str().find(table), std::string::npos) << "replace the table in docs/reference/run.md by\n" << table;
}

TEST(ForeignWords, OfVariablesSetOptions) {
  EXPECT_EQ(foreign_variables({.name = "precision"}),
            (std::vector<std::string>{"ACCELERATE_MIXED_PRECISION", "LT_PRECISION"}));
  EXPECT_EQ(foreign_variables({.name = "nodes", .aliases = {"num_nodes"}}), std::vector<std::string>{"LT_NUM_NODES"});
  EXPECT_TRUE(foreign_variables({.name = "timeout"}).empty());
}

}  // namespace
}  // namespace muster::options
