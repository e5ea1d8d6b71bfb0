#include <random>

#include <gtest/gtest.h>

#include "checks.h"
#include "format/safetensors.h"

namespace muster::format {
namespace {

using checks::expect_error;
using checks::file_of;

Header parse(std::string_view bytes) { return parse_header(bytes, bytes.size(), "weights"); }

void refuses(std::string_view words, const std::string& bytes) {
  expect_error<CheckpointError>("MU201", words, [&] { parse(bytes); });
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, int begin, int end) {
  return "\"" + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":[)" + std::string(shape) +
         R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

const std::string kFour(4, '\0');
const std::string kEight(8, '\0');

TEST(HeaderParser, ReadsTensorsInTheOrderOfTheirBytes) {
  const Header header =
      parse(file_of("{" + entry("b", "F32", "1", 4, 8) + "," + entry("a", "I16", "2,1", 0, 4) + "} ", kEight));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].type, ElementType::i16);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(header.tensors[0].offset, header.data_offset);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].offset, header.data_offset + 4);
  EXPECT_EQ(header.tensors[1].bytes, 4u);
}

TEST(HeaderParser, ReadsMetadata) {
  const Header header = parse(file_of(R"({"__metadata__":{"format":"pt","\u00e9":"a\nb"}})"));
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}, {"\xc3\xa9", "a\nb"}}));
  EXPECT_TRUE(header.tensors.empty());
}

TEST(HeaderParser, ReadsScalarsAndEmptyTensors) {
  const Header header =
      parse(file_of("{" + entry("scalar", "F32", "", 0, 4) + "," + entry("none", "F64", "3,0", 0, 0) + "}", kFour));
  EXPECT_EQ(header.tensors[0].name, "none");
  EXPECT_EQ(header.tensors[0].bytes, 0u);
  EXPECT_EQ(header.tensors[1].name, "scalar");
}

TEST(HeaderParser, TakesThePaddingOfOthers) {
  EXPECT_EQ(parse(file_of("{" + entry("a", "U8", "4", 0, 4) + "}\n \t", kFour)).tensors.size(), 1u);
}

TEST(HeaderParser, RefusesAnEmptyFile) { refuses("0 bytes, fewer than the 8", ""); }

TEST(HeaderParser, RefusesLessThanALength) { refuses("7 bytes, fewer than the 8", std::string(7, '\0')); }

TEST(HeaderParser, RefusesAnEmptyHeader) { refuses("does not begin with '{'", file_of("")); }

TEST(HeaderParser, RefusesAHugeHeader) {
  std::string bytes = file_of("{}");
  const std::uint64_t length = kMaxHeaderBytes + 1;
  std::memcpy(bytes.data(), &length, sizeof(length));
  refuses("100000001 bytes, more than the limit", bytes);
  bytes.assign(8, '\xff');
  refuses("18446744073709551615 bytes, more than the limit", bytes);
}

TEST(HeaderParser, RefusesAHeaderBeyondTheFile) {
  std::string bytes = file_of("{}");
  bytes[0] = 3;
  refuses("3 bytes, but only 2 follow: the file is truncated", bytes);
}

TEST(HeaderParser, RefusesTruncatedData) {
  refuses("tensor 'a' ends at byte 4 of 3 bytes of data: the file is truncated",
          file_of("{" + entry("a", "F32", "1", 0, 4) + "}", "abc"));
}

TEST(HeaderParser, RefusesTrailingBytes) {
  refuses("1 bytes at its end belong to no tensor", file_of("{" + entry("a", "F32", "1", 0, 4) + "}", kFour + "x"));
}

TEST(HeaderParser, RefusesOverlaps) {
  refuses("tensor 'b' overlaps another",
          file_of("{" + entry("a", "F32", "1", 0, 4) + "," + entry("b", "F32", "1", 2, 6) + "}", kEight));
  refuses("tensor 'b' overlaps another",
          file_of("{" + entry("a", "F32", "1", 0, 4) + "," + entry("b", "F32", "1", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesHoles) {
  refuses("hole before tensor 'a'", file_of("{" + entry("a", "F32", "1", 4, 8) + "}", kEight));
  refuses("hole before tensor 'b'",
          file_of("{" + entry("a", "U8", "1", 0, 1) + "," + entry("b", "F32", "1", 4, 8) + "}", kEight));
}

TEST(HeaderParser, RefusesAnEmptyTensorInsideAnother) {
  refuses("overlaps another",
          file_of("{" + entry("a", "F32", "2", 0, 8) + "," + entry("b", "F32", "0", 4, 4) + "}", kEight));
}

TEST(HeaderParser, RefusesRangesOutsideTheFile) {
  refuses("is truncated", file_of("{" + entry("a", "F32", "1", 1000, 1004) + "}", kFour));
}

TEST(HeaderParser, RefusesReversedOffsets) {
  refuses("ends before it begins", file_of("{" + entry("a", "F32", "1", 4, 0) + "}", kFour));
}

TEST(HeaderParser, RefusesSizesThatDoNotFitTheShape) {
  refuses("has 8 bytes, its shape needs 4", file_of("{" + entry("a", "F32", "1", 0, 8) + "}", kEight));
  refuses("has 4 bytes, its shape needs 8", file_of("{" + entry("a", "F64", "1", 0, 4) + "}", kFour));
  refuses("has 4 bytes, its shape needs 0", file_of("{" + entry("a", "F32", "0", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesElementsThatDoNotFillBytes) {
  refuses("no size in whole bytes", file_of("{" + entry("a", "F4", "3", 0, 2) + "}", "ab"));
}

TEST(HeaderParser, RefusesNegativeShapes) {
  refuses("tensor 'a' has a negative number in its shape", file_of("{" + entry("a", "F32", "-1", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesNegativeOffsets) {
  refuses("tensor 'a' has a negative number in its data_offsets",
          file_of("{" + entry("a", "F32", "1", -4, 0) + "}", kFour));
}

TEST(HeaderParser, RefusesOverflowingShapes) {
  refuses("no size in whole bytes below 2^60",
          file_of("{" + entry("a", "F32", "4294967296,4294967296", 0, 4) + "}", kFour));
  refuses("no size in whole bytes below 2^60", file_of("{" + entry("a", "F32", "4294967296,4294967296,0", 0, 0) + "}"));
  refuses("beyond 63 bits", file_of("{" + entry("a", "U8", "18446744073709551615", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesOverflowingOffsets) {
  refuses("beyond 63 bits",
          file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})", kFour));
  refuses("a number that is not a 64-bit integer",
          file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,36893488147419103232]}})", kFour));
}

TEST(HeaderParser, RefusesFractions) {
  refuses("a number that is not a 64-bit integer", file_of("{" + entry("a", "F32", "1.0", 0, 4) + "}", kFour));
  refuses("a number that is not a 64-bit integer", file_of("{" + entry("a", "F32", "1e0", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesUnknownTypesAndListsTheKnown) {
  refuses("unknown dtype 'F31'; the known ones are BOOL, F4", file_of("{" + entry("a", "F31", "1", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesDoubledTensors) {
  refuses("the name 'a' comes twice",
          file_of("{" + entry("a", "U8", "4", 0, 4) + "," + entry("a", "U8", "4", 4, 8) + "}", kEight));
  refuses("the name 'a' comes twice",  // the same name, spelt in two ways
          file_of("{" + entry("a", "U8", "4", 0, 4) + "," + entry("\\u0061", "U8", "4", 4, 8) + "}", kEight));
}

TEST(HeaderParser, RefusesDoubledFields) {
  refuses("tensor 'a' has dtype twice",
          file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", kFour));
  refuses("tensor 'a' has shape twice",
          file_of(R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", kFour));
}

TEST(HeaderParser, RefusesDoubledMetadata) {
  refuses("metadata 'k' comes twice", file_of(R"({"__metadata__":{"k":"1","k":"2"}})"));
  refuses("the name '__metadata__' comes twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"));
}

TEST(HeaderParser, RefusesMetadataThatIsNoText) {
  refuses("metadata 'k' is a number, not a string", file_of(R"({"__metadata__":{"k":1}})"));
  refuses("metadata 'k' is an object, not a string", file_of(R"({"__metadata__":{"k":{}}})"));
  refuses("__metadata__ is null, not an object", file_of(R"({"__metadata__":null})"));
  refuses("__metadata__ is a string, not an object", file_of(R"({"__metadata__":"x"})"));
}

TEST(HeaderParser, RefusesMissingFields) {
  refuses("lacks dtype, shape or data_offsets", file_of(R"({"a":{"dtype":"U8","shape":[4]}})", kFour));
  refuses("lacks dtype, shape or data_offsets", file_of(R"({"a":{}})"));
}

TEST(HeaderParser, RefusesUnknownFields) {
  refuses("unknown field 'scale'",
          file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"scale":2}})", kFour));
}

TEST(HeaderParser, RefusesOffsetsThatAreNoPair) {
  refuses("are not two numbers", file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", kFour));
  refuses("are not two numbers", file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,2,4]}})", kFour));
}

TEST(HeaderParser, RefusesFieldsOfAnotherKind) {
  refuses("tensor 'a' has a string in its shape",
          file_of(R"({"a":{"dtype":"U8","shape":"4","data_offsets":[0,4]}})", kFour));
  refuses("tensor 'a' has a number in its dtype",
          file_of(R"({"a":{"dtype":1,"shape":[4],"data_offsets":[0,4]}})", kFour));
  refuses("tensor 'a' has true or false in its shape",
          file_of(R"({"a":{"dtype":"U8","shape":[true],"data_offsets":[0,4]}})", kFour));
  refuses("tensor 'a' is an array, not an object", file_of(R"({"a":["U8",[4],[0,4]]})", kFour));
}

TEST(HeaderParser, RefusesAnotherRoot) {
  refuses("does not begin with '{'", file_of("[]"));
  refuses("does not begin with '{'", file_of(" {}"));
  refuses("does not begin with '{'", file_of("\xef\xbb\xbf{}"));
}

TEST(HeaderParser, RefusesBadJson) {
  refuses("not JSON at byte", file_of("{"));
  refuses("not JSON at byte", file_of("{\"a\""));
  refuses("not JSON at byte", file_of("{}x"));
  refuses("has a zero byte", file_of(std::string("{}\0", 3)));
  refuses("has a zero byte", file_of(std::string("{}\0hidden", 9)));
  refuses("not JSON at byte", file_of("{} // comment"));
  refuses("not JSON at byte", file_of("{" + entry("a", "U8", "4", 0, 4) + ",}", kFour));
}

TEST(HeaderParser, RefusesInvalidUtf8) {
  refuses("not JSON at byte", file_of("{" + entry("a\xff", "U8", "4", 0, 4) + "}", kFour));
  refuses("not JSON at byte", file_of("{" + entry("\\ud800", "U8", "4", 0, 4) + "}", kFour));
}

TEST(HeaderParser, RefusesDeepNesting) {
  const std::string deep(10'000'000, '[');
  refuses("an array", file_of("{\"a\":" + deep));
  refuses("an array in its shape", file_of(R"({"a":{"dtype":"U8","shape":[)" + deep));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  refuses("unknown field 'a'", file_of(objects));
}

TEST(HeaderParser, NeitherFillsNorSteersTheScreen) {
  const std::string name(1'000'000, 'n');
  try {
    parse(file_of("{" + entry(name, "F32", "2", 0, 4) + "}", kFour));
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_LT(std::string_view(error.what()).size(), 300u);
  }
  refuses("tensor 'a\\x1b[2J' has", file_of("{" + entry("a\\u001b[2J", "F32", "2", 0, 4) + "}", kFour));
}

TEST(HeaderParser, ReadsPartOfAFileOnlyIfItHoldsTheHeader) {
  const std::string bytes = file_of("{" + entry("a", "F32", "1", 0, 4) + "}", kFour);
  EXPECT_EQ(parse_header(std::string_view(bytes).substr(0, bytes.size() - 4), bytes.size(), "weights").tensors.size(),
            1u);
  expect_error<CheckpointError>("MU201", "could not be read to the end",
                                [&] { parse_header(std::string_view(bytes).substr(0, 20), bytes.size(), "weights"); });
}

/// Changes a few bytes: by bit, by value, by a copy from elsewhere, by a cut.
std::string mutated(std::string bytes, std::mt19937_64& random) {
  static constexpr std::string_view kTelling = "{}[]\",:0123456789-eE\\u\0\xff ";
  for (std::uint64_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t place = random() % bytes.size();
    switch (random() % 6) {
      case 0: bytes[place] ^= static_cast<char>(1 << random() % 8); break;
      case 1: bytes[place] = kTelling[random() % kTelling.size()]; break;
      case 2: bytes.insert(place, 1, kTelling[random() % kTelling.size()]); break;
      case 3: bytes.erase(place, 1 + random() % 8); break;
      case 4: bytes.insert(place, bytes.substr(random() % bytes.size(), random() % 32)); break;
      default: bytes[random() % 8] = static_cast<char>(random());
    }
  }
  return bytes;
}

TEST(HeaderParser, SurvivesTwentyThousandMutations) {
  const std::string valid =
      file_of(R"({"__metadata__":{"format":"pt"},)" + entry("weight", "F32", "2,1", 0, 8) + "," +
                  entry("bias", "BF16", "2", 8, 12) + "," + entry("mask", "BOOL", "4", 12, 16) + "}",
              std::string(16, '\1'));
  std::mt19937_64 random(20240607);
  int loaded = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string bytes = mutated(valid, random);
    try {
      const Header header = parse(bytes);
      std::uint64_t covered = header.data_offset;
      for (const TensorEntry& tensor : header.tensors) {
        ASSERT_EQ(tensor.offset, covered) << "mutation " << i;
        ASSERT_EQ(byte_count(tensor.type, tensor.shape), tensor.bytes) << "mutation " << i;
        covered += tensor.bytes;
      }
      ASSERT_EQ(covered, bytes.size()) << "mutation " << i;
      ++loaded;
    } catch (const CheckpointError& error) {
      ASSERT_EQ(error.id(), "MU201");
      ++refused;
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace muster::format
