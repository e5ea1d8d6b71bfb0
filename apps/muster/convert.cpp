#include "format/convert.h"

#include <cstdio>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "muster/base/error.h"
#include "parse.h"

namespace muster::cli {

namespace {

void print_report(const format::ConvertReport& report) {
  std::printf("%s -> %s: %zu tensors, %llu bytes\n", report.from.c_str(),
              std::string(format::name_of(report.to)).c_str(), report.tensors,
              static_cast<unsigned long long>(report.bytes));
  for (const auto& file : report.files) std::printf("  %s\n", file.c_str());
  for (const auto& place : report.left_out) std::printf("  left out: %s\n", place.c_str());
}

struct ConvertCall {
  std::string from, to, form, size;
  ConvertOptions options;
};

void declare(CLI::App& app, ConvertCall& call) {
  auto& options = call.options;
  app.add_option("FROM", call.from, "file or folder to read")->required();
  app.add_option("TO", call.to, "file or folder to write")->required();
  app.add_option("--to", call.form, "form to write, whatever the name says: torch, safetensors, folder or lightning");
  app.add_option("--model", options.model, "of a checkpoint folder with several models: which one's weights, from 0");
  app.add_option("--key,--part", options.part,
                 "convert only what stands there, such as state_dict or optimizer/state (see muster show) [for "
                 "safetensors: the only state dict]");
  app.add_option("--strip", options.strip, "take this away from the front of names, such as module.");
  app.add_option("--max-shard-size,--max_shard_size", call.size, "largest file of a folder [10GB]");
  app.add_flag(
      "--leave-out,--leave_out,!--no-leave-out,!--no_leave_out", options.leave_out,
      "leave out objects that are not understood, and for safetensors what is not a tensor, instead of failing");
}

struct ConsolidateCall {
  std::string folder, output;
};

void declare(CLI::App& app, ConsolidateCall& call) {
  app.add_option("FOLDER", call.folder, "checkpoint folder")->required();
  app.add_option("--output-file,--output_file", call.output,
                 "file to write; a torch file unless it ends with .safetensors [FOLDER.consolidated]");
}

}  // namespace

std::vector<options::Description> convert_flags() {
  CLI::App app;
  ConvertCall call;
  declare(app, call);
  return described(app);
}

std::vector<options::Description> consolidate_flags() {
  CLI::App app;
  ConsolidateCall call;
  declare(app, call);
  return described(app);
}

int convert(const Arguments& arguments) {
  CLI::App app(
      "Converts weights: torch files (of any form), safetensors files, folders of them with an index; and checkpoint "
      "folders into "
      "any of these. What is written follows from its name (.safetensors; .pt .pth .bin .ckpt; a folder).",
      "muster convert");
  ConvertCall call;
  declare(app, call);
  if (parse(app, arguments)) return 0;
  if (!call.form.empty()) call.options.to = format::weight_form(call.form);
  if (!call.size.empty()) call.options.max_shard_size = ByteSize(call.size);
  const auto report = format::convert(call.from, call.to, call.options);
  print_report(report);
  return 0;
}

int consolidate(const Arguments& arguments) {
  CLI::App app(
      "Makes one file of a checkpoint folder, whatever the number of ranks that wrote it: as muster convert does.",
      "muster consolidate");
  ConsolidateCall call;
  declare(app, call);
  if (parse(app, arguments)) return 0;
  auto& [folder, output] = call;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  if (output.empty()) output = folder + ".consolidated";
  if (std::filesystem::exists(output))
    throw UsageError("MU230", output + " is there already; remove it, or give another --output-file");
  ConvertOptions options;
  options.to = output.ends_with(".safetensors") ? WeightForm::safetensors : WeightForm::torch;
  print_report(format::convert(folder, output, options));
  return 0;
}

}  // namespace muster::cli
