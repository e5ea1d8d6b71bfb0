#include "format/python_file.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "checks.h"
#include "format/zip.h"
#include "muster/base/error.h"
#include "python_values.h"

namespace muster::format {
namespace {

using namespace std::string_literals;
using checks::described;
using checks::expect_error;
using checks::python_file;

/// What write.py saved; storages are counted as they come up.
const std::string kEverything =
    "{'state_dict': {'weight': float32[3, 4]/4, 1+0@0, 'transposed': float32[4, 3]/1, 4+0@0, 'row': float32[4]/1+4@0, "
    "'every_second': float32[3, 2]/4, 2+0@0, 'tied': float32[2]/1+0@1, 'again': float32[2]/1+0@1}, 'scalar': "
    "int64[]/+0@2, "
    "'half': bfloat16[2]/1+0@3, 'empty': float32[0, 3]/3, 1+0@4, 'expanded': float32[5]/0+0@5, 'epoch': 3, 'negative': "
    "-70000, "
    "'large': 4611686018427387904, 'rate': 0.1f, 'nothing': None, 'yes': True, 'no': False, 'text': "
    "'\u00e9\U0001f600', 'bytes': b2, "
    "'tuple': (1, (2, 'x'), ()), 'list': [1, [2.5f], {}], 'set': [4], 'size': (3, 4), 'dtype': 'torch.float16', "
    "'device': 'cuda:1', "
    "'numpy': 1.5f, 'numpy int': -4, 'counter': {'a': 2, 'b': 1}, 'optimizer': {'state': {0: {'step': float32[]/+0@6}, "
    "1: {}}, "
    "'param_groups': [{'lr': 0.1f, 'betas': (0.9f, 0.99f), 'params': [0, 1]}]}}";

PythonFile read_sample(const std::string& name) { return read_python_file(format::InputFile(python_file(name))); }

std::vector<float> floats(const std::string& name, const PythonStorage& storage) {
  const std::string bytes = checks::read(python_file(name)).substr(storage.offset, storage.bytes);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class EveryForm : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(PythonFileTest, EveryForm, testing::Values("zip.pt", "legacy.pt", "protocol4.pt"),
                         [](const auto& form) {
                           return std::string(form.param).substr(0, std::strlen(form.param) - 3);
                         });

TEST_P(EveryForm, IsReadWhole) {
  const PythonFile file = read_sample(GetParam());
  EXPECT_EQ(described(file.value, file), kEverything);
  EXPECT_EQ(file.form, std::string(GetParam()) == "legacy.pt" ? PythonFile::Form::legacy : PythonFile::Form::zip);
}

TEST_P(EveryForm, StoragesHoldTheValues) {
  const PythonFile file = read_sample(GetParam());
  std::vector<float> counted(12);
  for (std::size_t i = 0; i < 12; ++i) counted[i] = static_cast<float>(i);
  EXPECT_EQ(floats(GetParam(), file.storages.at(0)), counted);
  EXPECT_EQ(floats(GetParam(), file.storages.at(1)), (std::vector<float>{0.5, 0.5}));
  EXPECT_EQ(file.storages.at(0).location, "cpu");
}

TEST_P(EveryForm, DamageIsRefusedOrHarmless) {
  const std::string whole = checks::read(python_file(GetParam()));
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    if (i % 2) bytes.resize(random() % whole.size());
    else bytes[random() % whole.size()] = static_cast<char>(random());
    try {
      const PythonFile file = read_python_file(checks::in_memory(bytes, "file"));
      for (const auto& storage : file.storages) EXPECT_LE(storage.offset + storage.bytes, bytes.size());
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.id(), "MU225");
    }
  }
}

TEST(PythonFileTest, NewTypesAndLazyBits) {
  const PythonFile file = read_sample("new_dtypes.pt");
  EXPECT_EQ(described(file.value, file),
            "{'u16': uint16[2]/1+0@0, 'f8': float8_e4m3fn[3]/1+0@1, 'lazy': complex64[2]/1+0@2 conj}");
}

TEST(PythonFileTest, WhatIsNotUnderstoodIsNamed) {
  const PythonFile file = read_sample("foreign.pt");
  EXPECT_EQ(described(file.value, file),
            "{'model': {'w': float32[2]/1+0@0}, 'config': <__main__.Foreign>, 'sparse': "
            "<torch._utils._rebuild_sparse_tensor>, "
            "'quantized': <torch._utils._rebuild_qtensor>, 'array': <numpy._core.multiarray._reconstruct>, "
            "'huge': <int of more than 64 bits>, 'function': <builtins.print>}");
  EXPECT_NE(advice_about("torch._utils._rebuild_sparse_tensor").find("to_dense"), std::string::npos);
}

TEST(PythonFileTest, ArchiveOfAModuleHasItsFullNames) {
  const PythonFile file = read_sample("cpp_module.pt");
  EXPECT_EQ(file.form, PythonFile::Form::archive);
  EXPECT_EQ(described(file.value, file),
            "{'fc.weight': float32[2, 3]/3, 1+0@0, 'fc.bias': float32[2]/1+0@1, 'bn.weight': float32[2]/1+0@2, "
            "'bn.bias': float32[2]/1+0@3, "
            "'bn.running_mean': float32[2]/1+0@4, 'bn.running_var': float32[2]/1+0@5, 'bn.num_batches_tracked': "
            "int64[]/+0@6, "
            "'seq.0.weight': float32[2, 2]/2, 1+0@7, 'seq.0.bias': float32[2]/1+0@8}");
}

TEST(PythonFileTest, ArchiveOfAnOptimizerIsItsStateDict) {
  const PythonFile file = read_sample("cpp_adamw.pt");
  const std::string text = described(file.value, file);
  EXPECT_TRUE(text.starts_with("{'state': {0: {'step': 1, 'exp_avg': float32[2, 3]/3, 1+0@")) << text;
  EXPECT_TRUE(
      text.ends_with("'param_groups': [{'lr': 0.001f, 'betas': (0.9f, 0.999f), 'eps': 1e-08f, 'weight_decay': 0.01f, "
                     "'amsgrad': False, "
                     "'params': [0, 1, 2, 3, 4, 5]}]}"))
      << text;
}

/// A file of torch.save around this pickle, with one storage "0" of 16 bytes.
std::string file_around(const std::string& pickle) {
  ZipLayout layout;
  std::string bytes;
  const auto add = [&](const std::string& name, const std::string& record) {
    bytes += layout.begin("a/" + name, record.size(), crc32(record)) + record;
  };
  add("data.pkl", pickle);
  add("data/0", std::string(16, '\0'));
  return bytes + layout.end();
}

std::string sized_text(const std::string& text) {
  const auto bytes = static_cast<std::uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + text;
}

/// A float tensor in the storage "0": offset, shape and strides are opcodes.
std::string tensor(const std::string& offset, const std::string& shape, const std::string& strides,
                   const std::string& count = "K\x04", const std::string& key = "0") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"s + sized_text(key) +
         "X\x03\x00\x00\x00"
         "cpu"s +
         count + "tQ" + offset + shape + strides +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

void refuses_around(std::string_view words, const std::string& pickle) {
  const std::string bytes = file_around(pickle);
  expect_error<CheckpointError>("MU225", words, [&] { read_python_file(checks::in_memory(bytes, "file")); });
}

TEST(PythonFileTest, TensorsStayInTheirStorage) {
  const auto four = "K\x04\x85"s, one = "K\x01\x85"s;
  const std::string good = file_around(tensor("K\x00"s, four, one) + ".");
  EXPECT_EQ(read_python_file(checks::in_memory(good, "file")).tensors.size(), 1u);
  refuses_around("beyond its storage", tensor("K\x01", four, one) + ".");
  refuses_around("beyond its storage", tensor("K\x00"s, four, "K\x02\x85") + ".");
  refuses_around("cannot be", tensor("J\xff\xff\xff\xff", four, one) + ".");
  refuses_around("cannot be", tensor("K\x00"s, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85",
                                     "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85") +
                                  ".");
  refuses_around("disagree", tensor("K\x00"s, four, ")") + ".");
  refuses_around("fewer than its 5 elements", tensor("K\x00"s, four, one, "K\x05") + ".");
  refuses_around("not in the file", tensor("K\x00"s, four, one, "K\x04", "7") + ".");
  refuses_around("too few parts", "ctorch._utils\n_rebuild_tensor_v2\n)R.");
  refuses_around("something else than an integer", tensor("N", four, one) + ".");
}

TEST(PythonFileTest, CirclesAndUnfoldingAreRefused) {
  refuses_around("contain themselves",
                 "]\x94h\x00"
                 "a."s);
  std::string doubling = "]\x94";
  for (int i = 0; i < 60; ++i) doubling += "h"s + static_cast<char>(i) + "h" + static_cast<char>(i) + "\x86\x94";
  refuses_around("unfold", doubling + ".");
}

std::string long_text(char opcode, std::size_t size) { return opcode + sized_text(std::string(size, 'x')).substr(1); }

std::string repeated(const std::string& part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

TEST(PythonFileTest, ASmallFileCannotAskForMuchMemory) {
  constexpr std::size_t kText = 1 << 16;
  for (const char opcode :
       {'X', 'B'}) {  // one text, referred to again and again: 60 kB and 40 kB that unfold to 1.3 GB
    refuses_around("unfold to more than", "(" + long_text(opcode, kText) + "q\0"s + repeated("h\0"s, 20'000) + "t.");
    refuses_around("unfold to more than", "c_codecs\nencode\nq\1("s + long_text(opcode, kText) +
                                              "X\6\0\0\0latin1tq\2("s + repeated("h\1h\2R"s, 20'000) + "t.");
  }
  refuses_around("unfold to more than", "(cnumpy.core.multiarray\nscalar\nq\1("s + "cnumpy\ndtype\n(X\2\0\0\0f8tR"s +
                                            long_text('B', kText) + "tq\2"s + repeated("h\1h\2R"s, 20'000) + "t.");
  refuses_around("a dictionary has a key of more than 4096 bytes", "}("s + long_text('X', 4097) + "Nu.");
  refuses_around("class's name", "c" + std::string(2000, 'm') + "\nname\n.");
  refuses_around("a storage has a name of more than",
                 tensor("K\x00"s, "K\x04\x85", "K\x01\x85", "K\x04", "0" + std::string(2000, 'k')) + ".");
}

TEST(PythonFileTest, OrdinarySharingIsRead) {
  const std::string bytes = file_around("(" + long_text('X', 200) + "q\0"s + repeated("h\0"s, 10'000) + "(K\1K\2tq\1"s +
                                        repeated("h\1"s, 10'000) + "t.");
  EXPECT_EQ(read_python_file(checks::in_memory(bytes, "file")).value.items.size(), 20'002u);
}

TEST(PythonFileTest, KeysThatComeTwiceKeepTheLast) {
  const std::string bytes = file_around("}(K\x01K\x02K\x05K\x06K\x01K\x03u."s);
  const PythonFile file = read_python_file(checks::in_memory(bytes, "file"));
  EXPECT_EQ(described(file.value, file), "{1: 3, 5: 6}");
  refuses_around("key that Python does not take", "}(]Nu."s);
}

TEST(PythonFileTest, OtherFilesAreRefused) {
  expect_error<CheckpointError>("MU225", "begins neither",
                                [] { read_python_file(checks::in_memory("hello", "file")); });
  ZipLayout layout;
  std::string empty = layout.begin("a/b", 0, 0);
  empty += layout.end();
  expect_error<CheckpointError>("MU225", "without the record data.pkl",
                                [&] { read_python_file(checks::in_memory(empty, "file")); });
  EXPECT_FALSE(is_python_file(checks::in_memory("hello", "file")));
  EXPECT_TRUE(is_python_file(format::InputFile(python_file("legacy.pt"))));
}

}  // namespace
}  // namespace muster::format
