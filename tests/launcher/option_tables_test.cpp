#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/options_text.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"

namespace muster {
namespace {

/// Another value than the default for every option.
const std::map<std::string, std::string> kOther{{"accelerator", "cpu"},  {"devices", "3"},
                                                {"grace", "250ms"},      {"log_dir", "l"},
                                                {"fork_ranks", "false"}, {"heartbeat_timeout", "9s"},
                                                {"join_timeout", "8s"},  {"last_call_timeout", "7s"},
                                                {"main_address", "a"},   {"main_port", "1"},
                                                {"node_rank", "2"},      {"max_restarts", "6"},
                                                {"nodes", "2:4"},        {"options", "precision=bf16"},
                                                {"prefix", "false"},     {"secret_file", "x"},
                                                {"threads", "5"}};

TEST(OptionTables, EveryFieldIsReadFromEverySource) {
  const auto& table = run_option_table();
  EXPECT_EQ(kOther.size(), table.options.size()) << "a field is not tested here";
  std::string yaml = "run:\n";
  options::Sources by_flag, by_line, by_variable, by_file;
  for (const auto& option : table.options) {
    const auto& text = kOther.at(option.description.name);
    EXPECT_NE(text, option.description.default_text);
    by_flag.flags[option.description.name] = text;
    by_line.line[option.description.name] = {text, "line"};
    by_variable.variables.set(option.description.variable, text);
    yaml += "  " + option.description.name + ": " + text + "\n";
  }
  by_file.file = options::File::parse(yaml, "run.yaml");
  for (const auto* sources : {&by_flag, &by_line, &by_variable, &by_file}) {
    const auto reading = options::read_texts(table, options::find(table.descriptions(), table.section, *sources));
    for (const auto& option : table.options) {
      EXPECT_EQ(option.write(reading.values), kOther.at(option.description.name)) << option.description.name;
      EXPECT_TRUE(reading.places.contains(option.description.name));
    }
  }
}

std::string page(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(MUSTER_SOURCE_DIR "/docs/reference/" + name + ".md").rdbuf();
  return text.str();
}

TEST(OptionTables, TheReferencePagesAreTheTables) {
  const auto expect_table = [](const std::string& name, const std::vector<options::Description>& table) {
    EXPECT_NE(page(name).find(options::to_markdown(table)), std::string::npos)
        << "replace the table in docs/reference/" << name << ".md by the output of `muster options " << name << "`";
  };
  expect_table("run", run_option_table().descriptions());
  expect_table("options", runtime::program_options());
}

}  // namespace
}  // namespace muster
