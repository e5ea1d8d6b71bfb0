#include "launcher/option_jobs.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/options_text.h"
#include "options/program_options.h"

namespace muster::launcher::testing {

const options::Description& described(const std::string& name) {
  return *std::ranges::find(runtime::program_options(), name, &options::Description::name);
}

std::string written(const std::string& name, const std::string& text) { return name == "timeout" ? text + "s" : text; }

void expect_resolved(const Values& values, std::vector<std::string> flags, const Process::Setup& setup) {
  flags.insert(flags.end(), {"--no-prefix", rank_program(), "options"});
  Process process(muster_run(flags), setup);
  ASSERT_EQ(process.wait(), 0) << process.error();
  for (const auto& [name, text] : values)
    EXPECT_NE(("\n" + process.out()).find("\n" + name + "=" + written(name, text) + "\n"), std::string::npos)
        << name << "=" << text << " is missing in\n"
        << process.out();
}

void expect_by_flag(const std::vector<Values>& jobs) {
  for (const auto& values : jobs) {
    std::vector<std::string> flags;
    for (const auto& [name, text] : values) {
      const auto flag = described(name).flag();
      if (!described(name).is_switch) flags.insert(flags.end(), {flag, text});
      else flags.push_back(text == "true" ? flag : "--no-" + flag.substr(2));
    }
    expect_resolved(values, flags);
  }
}

void expect_by_variable(const std::vector<Values>& jobs) {
  for (const auto& values : jobs) {
    Process::Setup setup;
    for (const auto& [name, text] : values) setup.environment.push_back(described(name).variable + "=" + text);
    expect_resolved(values, {}, setup);
  }
}

void expect_by_line(const std::vector<Values>& jobs, const std::string& variable) {
  for (const auto& values : jobs) {
    options::RawOptions texts;
    for (const auto& [name, text] : values) texts[name].text = text;
    Process::Setup setup;
    setup.environment = {"MUSTER_OPTIONS=" + options::write_line(texts), variable};
    expect_resolved(values, {}, setup);
  }
}

}  // namespace muster::launcher::testing
