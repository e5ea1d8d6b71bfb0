#include <gtest/gtest.h>

#include "checks.h"
#include "format/safetensors.h"

namespace muster::format {
namespace {

using checks::expect_error;

std::string json_of(const FilePlan& plan) { return plan.head.substr(8); }

TEST(FilePlan, IsThatOfTheOriginalToTheByte) {
  const std::vector<TensorSpec> tensors{
      {"a", {1}, ElementType::f32}, {"b", {1}, ElementType::c64}, {"c", {1}, ElementType::i64}};
  const FilePlan plan = plan_file(tensors, {}, "weights");
  EXPECT_EQ(
      plan.head,
      std::string("\xa8\0\0\0\0\0\0\0", 8) +
          R"({"c":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"C64","shape":[1],"data_offsets":[8,16]},)"
          R"("a":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}}     )");
  EXPECT_EQ(plan.order, (std::vector<std::size_t>{2, 1, 0}));
  EXPECT_EQ(plan.file_bytes, 8u + 168 + 20);
}

TEST(FilePlan, OfNothingIsAnEmptyTable) { EXPECT_EQ(json_of(plan_file({}, {}, "weights")), "{}      "); }

TEST(FilePlan, PutsMetadataFirstAndEscapesText) {
  const std::vector<TensorSpec> tensors{{"q\"\n\x01\xc3\xa9", {}, ElementType::u8}};
  EXPECT_EQ(json_of(plan_file(tensors, {{"z", "\\"}, {"b", "/"}}, "weights")).substr(0, 80),
            "{\"__metadata__\":{\"b\":\"/"
            "\",\"z\":\"\\\\\"},\"q\\\"\\n\\u0001\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[],\"dat");
}

TEST(FilePlan, AlignsEveryTensorToItsElements) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i <= static_cast<int>(ElementType::u64); ++i)
    tensors.push_back({"t" + std::to_string(i), {4, i % 3}, static_cast<ElementType>(i)});
  const FilePlan plan = plan_file(tensors, {{"odd", "x"}}, "weights");
  EXPECT_EQ(plan.head.size() % 8, 0u);
  const Header header = parse_header(plan.head, plan.file_bytes, "weights");
  ASSERT_EQ(header.tensors.size(), tensors.size());
  for (const TensorEntry& tensor : header.tensors)
    if (bits_of(tensor.type) >= 8) {
      EXPECT_EQ(tensor.offset % (bits_of(tensor.type) / 8), 0u) << tensor.name;
    }
}

TEST(FilePlan, IsReadBackAsPlanned) {
  const std::vector<TensorSpec> tensors{
      {"x", {0, 3}, ElementType::bf16}, {"", {2, 2}, ElementType::f16}, {"w", {}, ElementType::f64}};
  const Metadata metadata{{"format", "pt"}, {"", "empty"}};
  const FilePlan plan = plan_file(tensors, metadata, "weights");
  const Header header = parse_header(plan.head, plan.file_bytes, "weights");
  EXPECT_EQ(header.metadata, metadata);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(header.tensors[i].name, tensors[plan.order[i]].name);
    EXPECT_EQ(header.tensors[i].shape, tensors[plan.order[i]].shape);
    EXPECT_EQ(header.tensors[i].type, tensors[plan.order[i]].type);
  }
}

TEST(FilePlan, RefusesWhatTheFormatCannotHold) {
  const auto refuses = [](std::string_view words, const std::vector<TensorSpec>& tensors,
                          const Metadata& metadata = {}) {
    expect_error<CheckpointError>("MU203", words, [&] { plan_file(tensors, metadata, "weights"); });
  };
  refuses("two tensors are named 'a'", {{"a", {1}, ElementType::f32}, {"a", {2}, ElementType::f64}});
  refuses("__metadata__ is reserved", {{"__metadata__", {1}, ElementType::f32}});
  refuses("not UTF-8", {{"a\xff", {1}, ElementType::f32}});
  refuses("not UTF-8", {}, {{"k", "\xff"}});
  refuses("no size in whole bytes", {{"a", {std::int64_t{1} << 61}, ElementType::f32}});
  refuses("more than the limit", {}, {{"k", std::string(kMaxHeaderBytes, 'x')}});
}

}  // namespace
}  // namespace muster::format
