#include "muster/launcher/detail/option_tables.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(OptionTables, EveryFieldIsRead) {
  options::Sources sources;
  sources.flags = {{"accelerator", "cpu"}, {"devices", "3"},      {"fsdp", "f"},       {"grace", "250ms"},
                   {"log_dir", "l"},       {"main_address", "a"}, {"main_port", "1"},  {"node_rank", "2"},
                   {"nodes", "4"},         {"precision", "p"},    {"prefix", "false"}, {"secret_file", "x"},
                   {"strategy", "s"},      {"threads", "5"},      {"timeout", "6"}};
  EXPECT_EQ(sources.flags.size(), run_option_table().options.size()) << "a field is not tested here";
  auto values = options::read(run_option_table(), sources).values;
  EXPECT_EQ(values.accelerator + values.devices + values.fsdp + values.log_dir + values.main_address +
                values.precision + values.secret_file + values.strategy,
            "cpu3flapxs");
  EXPECT_EQ(values.grace.count(), 250);
  EXPECT_EQ(
      values.main_port * 10000 + values.node_rank * 1000 + values.nodes * 100 + values.threads * 10 + values.timeout,
      12456);
  EXPECT_FALSE(values.prefix);
}

TEST(OptionTables, TheReferencePageIsTheTable) {
  std::ostringstream page;
  page << std::ifstream(MUSTER_SOURCE_DIR "/docs/reference/run.md").rdbuf();
  EXPECT_NE(page.str().find(options::to_markdown(run_option_table().descriptions())), std::string::npos)
      << "replace the table in docs/reference/run.md by the output of `muster options`";
}

}  // namespace
}  // namespace muster
