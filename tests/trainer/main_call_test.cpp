#include "muster/trainer/detail/main_call.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "launcher/process.h"
#include "options/program_options.h"
#include "options/runtime_fields.h"
#include "options/trainer_fields.h"
#include "trainer/called_program.h"

namespace muster::trainer {
namespace {

using muster::launcher::testing::Folder;
using namespace testing;

TEST(MainCall, FlagsSetFieldsOfEveryType) {
  const auto [call, model, data] =
      accepted({"fit", "--model.rate", "1e-3", "--model.name=a, b", "--model.sizes.in", "-4", "--model.smooth",
                "--model.steps", "[1, 2]", "--model.words=x,\"y,z\"", "--model.decay", "0.5", "--data.workers", "255",
                "--data.part=0.1", "--ckpt_path", "some/folder"});
  EXPECT_EQ(call.stage, Stage::fit);
  EXPECT_EQ(call.ckpt_path, "some/folder");
  EXPECT_EQ(model.rate, 1e-3);
  EXPECT_EQ(model.name, "a, b");
  EXPECT_EQ(model.sizes.in, -4);
  EXPECT_EQ(model.sizes.out, 2);
  EXPECT_TRUE(model.smooth);
  EXPECT_EQ(model.steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(model.words, (std::vector<std::string>{"x", "y,z"}));
  EXPECT_EQ(model.decay, 0.5);
  EXPECT_EQ(data.workers, 255);
  EXPECT_EQ(data.part, 0.1F);
  EXPECT_EQ(accepted({"fit", "--model.decay", "0.5", "--model.decay", "none", "--model.smooth", "off"}).model.decay,
            std::nullopt);
}

TEST(MainCall, ArgumentsOfTheTrainerHaveLightningsNames) {
  const auto read = accepted({"validate", "--trainer.max-epochs=3", "--trainer.limit_val_batches", "0.5",
                              "--trainer.accumulate_grad_batches", "2", "--trainer.precision", "bf16-mixed",
                              "--trainer.fast_dev_run", "true", "--trainer.barebones", "false",
                              "--trainer.check_val_every_n_epoch", "null", "--trainer.val_check_interval", "4"});
  EXPECT_EQ(read.call.stage, Stage::validate);
  const auto options = trainer_of(read);
  EXPECT_EQ(options.max_epochs, 3);
  EXPECT_EQ(options.fast_dev_run, 1);
  EXPECT_EQ(options.check_val_every_n_epoch, std::nullopt);
  EXPECT_EQ(*options.limit_val_batches.part(), 0.5);
  expect_in(read.call.options_line, {R"("gradient_accumulation.num_steps":"2")", R"("precision":"bf16-mixed")",
                                     R"("precision":"flag --trainer.precision")"});
}

TEST(MainCall, AFlagCountsMoreThanAVariableThatMoreThanAFileAndThatMoreThanCode) {
  const Folder folder;
  const auto first =
      folder.write("1.yaml", "trainer: {max_epochs: 11, max_steps: 5}\nmodel: {rate: 0.11, name: x}\n", 0644);
  const auto second = folder.write("2.yaml", "trainer: {max_epochs: 12}\nmodel: {rate: 0.12}\n", 0644);
  const TrainerOptions code{.max_epochs = 10, .min_epochs = 1};
  const Environment variables{{"MUSTER_MODEL_RATE", "0.13"}, {"MUSTER_TRAINER_MAX_EPOCHS", "13"}};
  const auto expect = [&](const Read& read, int64_t epochs, double rate) {
    EXPECT_EQ(trainer_of(read).max_epochs, epochs);
    EXPECT_EQ(trainer_of(read).min_epochs, 1);
    EXPECT_EQ(read.model.rate, rate);
  };
  expect(accepted({"fit"}, {}, code), 10, 0.1);
  expect(accepted({"fit", "--config", first}, {}, code), 11, 0.11);
  const Words both{"-c", first, "fit", "--config=" + second};
  expect(accepted(both, {}, code), 12, 0.12);
  EXPECT_EQ(accepted(both, {}, code).model.name, "x");
  EXPECT_EQ(trainer_of(accepted(both, {}, code)).max_steps, 5);
  expect(accepted(both, variables, code), 13, 0.13);
  auto line = variables;
  line.set("MUSTER_OPTIONS", "trainer.max_epochs=14");
  expect(accepted(both, line, code), 14, 0.13);
  auto flags = both;
  flags.insert(flags.end(), {"--trainer.max_epochs", "1", "--trainer.max_epochs", "15", "--model.rate", "0.15"});
  expect(accepted(flags, line, code), 15, 0.15);
}

TEST(MainCall, NothingThatCodeSetsIsContradicted) {  // no MU171
  const TrainerOptions code{.accelerator = "cpu",
                            .devices = 2,
                            .gradient_clip_val = 1.0,
                            .max_epochs = 10,
                            .precision = "bf16-mixed",
                            .strategy = "ddp"};
  const auto read = accepted({"fit", "--trainer.precision", "32-true", "--trainer.strategy=fsdp", "--trainer.devices",
                              "1", "--trainer.gradient_clip_val", "none", "--trainer.max_epochs", "none",
                              "--trainer.accelerator", "auto", "--trainer.backend", "shm"},
                             {}, code);
  EXPECT_EQ(read.call.trainer.precision.name(), "32-true");
  EXPECT_EQ(read.call.trainer.strategy.name(), "auto");
  EXPECT_EQ(trainer_of(read).gradient_clip_val, std::nullopt);
  EXPECT_EQ(trainer_of(read).max_epochs, std::nullopt);
  expect_in(printed({"fit", "--trainer.strategy=fsdp"}, {}, code),
            {"  accelerator: cpu\n", "  devices: 2\n", "  strategy: fsdp\n", "  precision: bf16-mixed\n",
             "  gradient_clip_val: 1\n"});
}

TEST(MainCall, APrintedConfigurationReadsBackToTheSame) {
  const Folder folder;
  const TrainerOptions code{.max_epochs = 10, .precision = "bf16-mixed"};
  const std::vector<Words> calls{
      {"fit"},
      {"validate", "--seed_everything", "7"},
      {"fit",
       "--seed_everything=false",
       "--trainer.max_epochs",
       "none",
       "--trainer.precision",
       "32",
       "--trainer.strategy",
       "fsdp",
       "--trainer.fsdp.stage",
       "gradients",
       "--trainer.grad_scaler.init_scale",
       "8",
       "--trainer.default_root_dir",
       "a folder's: #1",
       "--trainer.val_check_interval",
       "90s",
       "--trainer.timeout",
       "5min",
       "--trainer.accumulate_grad_batches",
       "4",
       "--model.name",
       "null",
       "--model.words",
       "no,\"x,y\",'",
       "--model.steps",
       "1",
       "--model.decay",
       "1e-30",
       "--model.rate",
       "0.30000000000000004",
       "--data.part",
       "0.1",
       "--ckpt_path",
       "last"},
      {"fit", "--model.name", "two\nlines\t\"and\" \\", "--model.words", "", "--model.decay", "none"},
      {"fit", "--model.name="}};
  for (const auto& words : calls) {
    const auto text = printed(words, {}, code);
    const auto file = folder.write("all.yaml", text, 0644);
    EXPECT_EQ(printed({words.front(), "--config", file}, {}, code), text);
    const auto first = read(words, {}, code), again = read({words.front(), "--config", file}, {}, code);
    EXPECT_EQ(again.model.name, first.model.name);
    EXPECT_EQ(again.model.words, first.model.words);
    EXPECT_EQ(again.model.rate, first.model.rate);
    EXPECT_EQ(again.call.seed, first.call.seed);
    EXPECT_EQ(again.call.ckpt_path, first.call.ckpt_path);
    EXPECT_EQ(written_options(trainer_of(again)), written_options(trainer_of(first)));
  }
  expect_in(printed(calls[2], {}, code),
            {"seed_everything: false\ntrainer:\n", "  fsdp:\n    stage: gradients\n", "  max_epochs: null\n",
             "model:\n  decay: 1e-30\n", "  sizes:\n    in: 3\n    out: 2\n", "  steps: [1]\n", "ckpt_path: last\n"});
}

TEST(MainCall, TheSeedIsZeroUnlessTheCallSaysOtherwise) {
  EXPECT_EQ(accepted({"fit"}).call.seed, 0U);
  EXPECT_EQ(accepted({"fit", "--seed_everything", "true"}).call.seed, 0U);
  EXPECT_EQ(accepted({"fit", "--seed_everything", "1"}).call.seed, 1U);
  EXPECT_EQ(accepted({"fit", "--seed_everything", "false"}).call.seed, std::nullopt);
}

TEST(MainCall, FilesOfLightningAreReadAsTheyAre) {
  const Folder folder;
  const auto file = folder.write("cli.yaml",
                                 "# lightning.pytorch==2.6.6\nseed_everything: true\nfit:\n  trainer:\n"
                                 "    accelerator: cpu\n    strategy:\n      class_path: "
                                 "lightning.pytorch.strategies.FSDPStrategy\n      init_args: {sharding_strategy: "
                                 "SHARD_GRAD_OP}\n    logger: null\n    callbacks: null\n    fast_dev_run: false\n"
                                 "    max_epochs: 4\n    limit_train_batches: null\n    plugins: null\n"
                                 "    profiler: null\n    benchmark: null\n    use_distributed_sampler: true\n"
                                 "  model: {sizes: {in: 5}, steps: [3], decay: null}\n  data: {}\n  ckpt_path: null\n"
                                 "  weights_only: null\nvalidate: {trainer: {max_epoch: 1}, verbose: true}\n"
                                 "run: {devices: 4}\n",
                                 0644);
  const auto read = accepted({"fit", "--config", file});
  EXPECT_EQ(trainer_of(read).max_epochs, 4);
  EXPECT_EQ(read.model.sizes.in, 5);
  EXPECT_EQ(read.model.steps, std::vector<int64_t>{3});
  EXPECT_EQ(read.call.ckpt_path, "");
  expect_in(read.call.options_line, {"fsdp.reshard_after_forward", "cli.yaml line"});
  expect_in(refused({"validate", "--config", file}), {"no argument 'max_epoch'; nearest is 'max_epochs'"});
}

TEST(MainCall, BooleansAreReadAlikeInFilesFlagsAndVariables) {
  const Folder folder;
  const std::pair<bool, std::vector<std::string>> words[] = {{true, {"true", "True", "TRUE", "yes", "On", "1"}},
                                                             {false, {"false", "False", "FALSE", "no", "Off", "0"}}};
  for (const auto& [value, spelled] : words)
    for (const auto& word : spelled) {
      const auto file = folder.write("c.yaml",
                                     "trainer: {fast_dev_run: " + word + ", barebones: " + word +
                                         ", logger: true, use_distributed_sampler: YES}\nverbose: True\n",
                                     0644);
      const auto by_flag = accepted({"fit", "--trainer.fast_dev_run", word, "--trainer.inference_mode=" + word});
      EXPECT_EQ(trainer_of(by_flag).fast_dev_run, value) << word;
      EXPECT_EQ(trainer_of(by_flag).inference_mode, value) << word;
      const auto by_file = accepted({"fit", "--config", file, "--trainer.barebones", "false"});
      EXPECT_EQ(trainer_of(by_file).fast_dev_run, value) << word;
      const Environment variables{{"MUSTER_TRAINER_FAST_DEV_RUN", word}};
      EXPECT_EQ(with_given_options({}, variables).fast_dev_run, value) << word;
      EXPECT_EQ(accepted({"fit"}, {{"MUSTER_MODEL_SMOOTH", word}}).model.smooth, value) << word;
    }
  EXPECT_EQ(trainer_of(accepted({"fit", "--trainer.fast_dev_run", "5"})).fast_dev_run, 5);
}

TEST(MainCall, TimesOfFilesStandInPartsOrAsPythonWritesThem) {
  const Folder folder;
  const auto read = [&](const std::string& trainer) {
    return accepted({"fit", "--config", folder.write("c.yaml", "trainer:\n" + trainer, 0644)});
  };
  const auto time = read("  max_time: {days: 1, hours: 3, minutes: 0.5}\n  val_check_interval: {minutes: 2}\n");
  EXPECT_EQ(trainer_of(time).max_time, std::chrono::hours(27) + std::chrono::seconds(30));
  EXPECT_EQ(trainer_of(time).val_check_interval.time(), std::chrono::minutes(2));
  for (const auto* name : {"DDPStrategy", "FSDPStrategy"})
    for (const auto* timeout :
         {"0:30:00", "{class_path: datetime.timedelta, init_args: {minutes: 30}}", "{hours: 0.5}"}) {
      const auto strategy = read("  strategy:\n    class_path: lightning.pytorch.strategies." + std::string(name) +
                                 "\n    init_args: {timeout: " + timeout + "}\n");
      const auto options = runtime::resolved({}, {{"MUSTER_OPTIONS", strategy.call.options_line}});
      EXPECT_EQ(options.timeout, std::chrono::minutes(30)) << timeout;
      expect_in(strategy.call.options_line, {name, "c.yaml line"});
    }
  const auto wrong =
      folder.write("w.yaml", "trainer:\n  max_time: {hour: 3}\n  val_check_interval: {minutes: x}\n", 0644);
  expect_in(refused({"fit", "--config", wrong}), {"w.yaml line 2: a time has no part 'hour'; nearest is 'hours'",
                                                  "w.yaml line 3: option 'minutes' is 'x', but a number is wanted"});
}

TEST(MainCall, ALauncherHasDecidedHowManyRanksThereAre) {
  const Folder folder;
  const auto file = folder.write("c.yaml", "trainer: {devices: 4, num_nodes: 1}\n", 0644);
  const Environment launched{{"RANK", "0"},        {"WORLD_SIZE", "2"},       {"LOCAL_RANK", "0"},
                             {"MASTER_PORT", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}};
  const auto read = accepted({"fit", "--config", file}, launched);
  EXPECT_EQ(read.call.options_line, "");
  expect_in(read.call.error, {"c.yaml line 1: devices 4 has no effect", "has started 2"});
  EXPECT_EQ(read.call.error.find("num_nodes"), std::string::npos) << read.call.error;
  expect_in(accepted({"fit", "--config", file}).call.options_line, {R"("devices":"4")"});
}

constexpr const char* kWrong =
    "trainer:\n  max_epoch: 3\n  callbacks: [EarlyStopping]\n  strategy: dpp\nmodel:\n"
    "  rat: 1\n  name: [a]\n  rate: null\n  class_path: Lit\ndata: 3\nmodels: 1\n"
    "optimizer: {class_path: Adam}\nverbose: false\n";

TEST(MainCall, EveryMistakeIsInOneMessage) {  // MU500
  const Folder folder;
  const auto file = folder.write("c.yaml", kWrong, 0644);
  const auto text = refused({"fit",
                             "--config",
                             file,
                             "--config",
                             folder.path() + "/none.yaml",
                             "--max_epochs",
                             "3",
                             "--trainer.precision",
                             "9",
                             "--trainer.max_steps",
                             "x",
                             "--model.sizes.in=1.5",
                             "--model.sizes",
                             "3",
                             "--data.workers=256",
                             "--data.part",
                             "--model.decay",
                             "much",
                             "--seed_everything=-1",
                             "stray",
                             "--unknown",
                             "1",
                             "--print_config=all",
                             "-x"},
                            {{"MUSTER_MODEL_RAET", "1"}, {"MUSTER_DATA_ROWS", "few"}});
  expect_in(text, {"MU500: nothing has run, since the call of train is wrong",
                   "c.yaml line 2: the Trainer has no argument 'max_epoch'; nearest is 'max_epochs'",
                   "c.yaml line 3: only code can give 'trainer.callbacks'",
                   "MU170",
                   "c.yaml line 6: the module has no option 'rat'; nearest is 'rate'",
                   "c.yaml line 7: option 'model.name' is 'a,', but one value, text, and no list is wanted",
                   "c.yaml line 8: option 'model.rate' is '', but a value, number, is wanted",
                   "write the keys of init_args directly below model",
                   "c.yaml line 10: 'data' is a section",
                   "c.yaml line 11: no key 'models' is known; nearest is 'model'",
                   "c.yaml line 12: 'optimizer' is what configure_optimizers()",
                   "c.yaml line 13: 'verbose' is not followed here",
                   "cannot read the option file '" + folder.path() + "/none.yaml'",
                   "there is no flag --max_epochs; nearest is --trainer.max_epochs",
                   "flag --trainer.precision",
                   "flag --trainer.max_steps: option 'trainer.max_steps' is 'x', but a whole number is wanted",
                   "flag --model.sizes.in: option 'model.sizes.in' is '1.5', but a whole number from",
                   "flag --model.sizes: the module has no option 'sizes'",
                   "flag --data.workers: option 'data.workers' is '256', but a whole number from 0 to 255 is wanted",
                   "flag --data.part lacks its value",
                   "flag --model.decay: option 'model.decay' is 'much', but a number, or none, is wanted",
                   "flag --seed_everything: option 'seed_everything' is '-1', but a whole number from 0, true or false",
                   "'stray' stands where a flag such as --config is expected, behind fit",
                   "there is no flag --unknown",
                   "flag --print_config takes no value, and has 'all'",
                   "there is no flag '-x'",
                   "variable MUSTER_MODEL_RAET is none of this program's; nearest is 'MUSTER_MODEL_RATE'",
                   "variable MUSTER_DATA_ROWS: option 'data.rows' is 'few'",
                   "(all options: train fit --help; more: muster explain MU500)"});
}

TEST(MainCall, OptionsThatDoNotGoTogetherAreRefusedWithThoseOfCode) {  // MU440, MU171
  expect_in(refused({"fit", "--trainer.max_epochs", "2"}, {}, {.min_epochs = 3}),
            {"MU500", "MU440", "min_epochs is greater than max_epochs"});
  expect_in(refused({"fit", "--trainer.strategy", "ddp", "--trainer.fsdp.stage", "gradients"}), {"MU500", "MU171"});
  expect_in(refused({"fit", "--trainer.accelerator", "tpu"}), {"MU481"});
}

TEST(MainCall, ACommandIsOneThatTheProgramHas) {  // MU500, MU501
  expect_in(refused({}), {"MU500", "a command is missing", "the known ones are fit, validate", "(all options: train "});
  expect_in(refused({"fitt"}), {"there is no command 'fitt'; nearest is 'fit'"});
  expect_in(refused({"test"}), {"MU501", "test takes test_step in the module", "the known ones are fit, validate"});
  expect_in(refused({"predict"}), {"MU501", "predict_step or forward in the module"});
}

/// It has the loaders, and no options.
struct Plain : TrainerModule {
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return batch.sum(); }
  auto train_dataloader() const {
    return DataLoader([](int64_t i) { return torch::full({1}, i); }, 8);
  }
};

TEST(MainCall, AModuleMayHaveTheLoadersAndNoOptions) {
  HeldOptions<Plain> model;
  const auto program = main_program<Plain, Plain>(model, {}, {});
  EXPECT_FALSE(read_main_call({"p", "fit", "--trainer.max_epochs", "1"}, program, {}).exit_code);
  const auto wrong = read_main_call({"p", "fit", "--model.rate", "1", "--data.rows", "1"}, program, {});
  expect_in(wrong.error, {"the module has no option 'rate'", "the data module has no option 'rows'"});
  const auto help = read_main_call({"p", "-h"}, program, {}).output;
  EXPECT_EQ(help.find("Options of the module"), std::string::npos) << help;
  const auto config = read_main_call({"p", "fit", "--print_config"}, program, {}).output;
  EXPECT_EQ(config.find("model:"), std::string::npos) << config;
}

TEST(MainCall, OptionsOfTheRuntimeAreThoseOfItsTable) {
  const auto arguments = trainer_arguments({});  // of the names that it takes, those that the table has
  std::vector<std::string> names{"accumulate_grad_batches", "gradient_accumulation.weighting"};
  runtime::visit_options([&](const std::string& name, auto get, const auto& description) {
    constexpr bool in_both = requires(RuntimeOptions& to, const TrainerOptions& from) { get(to) = get(from); };
    if (in_both && !description.code_only) names.push_back(name);
  });
  EXPECT_GT(names.size(), 10u);
  for (const auto& name : names) EXPECT_NE(options::find_option(arguments, "trainer." + name), nullptr) << name;
}

}  // namespace
}  // namespace muster::trainer
