#include "comm/header.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::comm {
namespace {

Frame frame_of(const Operation& operation) {
  Frame frame{};
  write_header(frame, make_header(operation, nullptr, 0));
  return frame;
}

std::string seen_by(int rank, const Operation& mine, int peer, const Operation& theirs) {
  try {
    check_headers(make_header(mine, nullptr, 0), rank, frame_of(theirs), peer, "world");
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(Header, NamesOperationNumberAndBothSidesInRankOrder) {
  Operation reduce{.kind = OperationKind::all_reduce, .out = at::ones({4, 3}), .sequence = 17};
  Operation cast{.kind = OperationKind::broadcast, .root = 0, .out = at::ones({12}), .sequence = 17};
  std::string words =
      "MU050: rank 0 called all_reduce(sum) of float32 [4, 3], rank 1 called broadcast(root 0) of float32 [12], "
      "operation 17 of group world.";
  EXPECT_TRUE(seen_by(0, reduce, 1, cast).starts_with(words)) << seen_by(0, reduce, 1, cast);
  EXPECT_TRUE(seen_by(1, cast, 0, reduce).starts_with(words)) << seen_by(1, cast, 0, reduce);
}

TEST(Header, TellsDifferentPositions) {
  Operation mine{.kind = OperationKind::barrier, .sequence = 3}, theirs{.kind = OperationKind::barrier, .sequence = 4};
  EXPECT_NE(seen_by(0, mine, 1, theirs).find("operation 3 on rank 0 and 4 on rank 1"), std::string::npos);
}

TEST(Header, TellsLabelsApartThatAgreeInAllElse) {
  Operation mine{.kind = OperationKind::all_gather, .label = {.text = "unit 'a'"}, .in = at::ones({2})}, theirs = mine;
  EXPECT_EQ(seen_by(0, mine, 1, theirs), "");
  theirs.label.text = "unit 'b'";
  EXPECT_NE(seen_by(0, mine, 1, theirs)
                .find("rank 0 called all_gather of float32 [2] for unit 'a', rank 1 called all_gather of float32 [2] "
                      "for unit 'b'"),
            std::string::npos)
      << seen_by(0, mine, 1, theirs);
  mine.label.text = std::string(100, 'x') + "1",
  theirs.label.text = std::string(100, 'x') + "2";  // shown in part, compared whole
  EXPECT_NE(seen_by(0, mine, 1, theirs), "");
}

TEST(Header, WhateverDiffersHasAnotherDigest) {
  const auto digest = [](const Operation& operation) { return digest_of(make_header(operation, nullptr, 0)); };
  const Operation mine{.kind = OperationKind::all_reduce, .out = at::ones({4, 3}), .sequence = 17};
  std::vector<Operation> others(9, mine);
  others[0].kind = OperationKind::broadcast;
  others[1].reduce = ReduceOp::max;
  others[2].root = 0;
  others[3].out = at::ones({3, 4});
  others[4].out = at::ones({4, 3}, at::kDouble);
  others[5].sequence = 18;
  others[6].label.text = "gradients";
  others[7].label.source = Source::library;
  others[8].label.gradient_step = 0;
  std::set<uint64_t> digests{digest(mine)};
  for (const auto& other : others) EXPECT_TRUE(digests.insert(digest(other)).second) << describe(other);
  Operation same = mine;
  same.out = at::zeros({4, 3});
  same.piggyback = 5;
  same.location = {1, 64};
  EXPECT_EQ(digest(same), digest(mine));
}

TEST(Header, TellsApartWhoseCallItIsWhichTensorAndWhichStep) {
  const Operation mine{.kind = OperationKind::all_gather, .in = at::ones({2})};
  Operation library = mine, leaf = mine, step = mine;
  library.label = {.text = "joining", .source = Source::library};
  leaf.label = {.tensor_index = 1, .tensor_count = 3};
  step.label = {.gradient_step = 7};
  const std::string crossed = seen_by(0, mine, 1, library);
  EXPECT_NE(
      crossed.find(
          "rank 0 called all_gather of float32 [2], rank 1 called the library's all_gather of float32 [2] for joining"),
      std::string::npos)
      << crossed;
  EXPECT_NE(crossed.find("One of them is a call of the program"), std::string::npos) << crossed;
  EXPECT_NE(seen_by(0, mine, 1, leaf).find("float32 [2], tensor 2 of 3 of a value"), std::string::npos)
      << seen_by(0, mine, 1, leaf);
  EXPECT_NE(seen_by(0, mine, 1, step).find("float32 [2] in gradient step 7"), std::string::npos)
      << seen_by(0, mine, 1, step);
  EXPECT_EQ(seen_by(0, library, 1, library) + seen_by(0, leaf, 1, leaf) + seen_by(0, step, 1, step), "");
}

TEST(Header, RefusesAMessageWhosePartsContradictEachOther) {
  const Operation operation{.kind = OperationKind::all_gatherv, .in = at::ones({2, 3})};
  const Header mine = make_header(operation, &operation.in, 24);
  const std::vector<std::pair<const char*, std::function<void(Header&)>>> lies{
      {"more bytes than the shape has", [](Header& h) { h.bytes = 3000; }},
      {"fewer bytes than the shape has", [](Header& h) { h.bytes = 4; }},
      {"a shape that overflows", [](Header& h) { h.shape[0] = h.shape[1] = int64_t{1} << 40; }},
      {"a negative size", [](Header& h) { h.shape[0] = h.shape[1] = -1, h.bytes = 4; }},
      {"too many dimensions", [](Header& h) { h.dims = 1000; }},
      {"negative dimensions", [](Header& h) { h.dims = -1; }},
      {"an unknown dtype", [](Header& h) { h.dtype = 120; }},
      {"an unknown operation", [](Header& h) { h.kind = static_cast<OperationKind>(99); }},
      {"a leaf behind the last one", [](Header& h) { h.tensor_index = 4, h.tensor_count = 2; }},
      {"an unknown source", [](Header& h) { h.source = static_cast<Source>(9); }}};
  for (const auto& [name, lie] : lies) {
    Frame frame{};
    Header theirs = mine;
    lie(theirs);
    write_header(frame, theirs);
    EXPECT_THROW(check_headers(mine, 0, frame, 1, "world"), CommError) << name;
  }
  Frame honest{};
  write_header(honest, mine);
  EXPECT_NO_THROW(check_headers(mine, 0, honest, 1, "world"));
}

TEST(Header, ALabelOfAPeerMovesNoCursor) {
  const Operation mine{.kind = OperationKind::barrier};
  Operation theirs = mine;
  theirs.label.text = "a\x1b[2Jb";
  Header header = make_header(theirs, nullptr, 0);
  std::fill(header.label, header.label + sizeof header.label, 'x');  // nor need it end
  std::copy_n("a\x1b[2Jb", 6, header.label);
  Frame frame{};
  write_header(frame, header);
  try {
    check_headers(make_header(mine, nullptr, 0), 0, frame, 1, "world");
    FAIL() << "no failure";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("for a?[2Jbxxx"), std::string::npos) << error.what();
  }
}

TEST(Header, AgreesWhereShapesMayDiffer) {
  Operation mine{.kind = OperationKind::all_gatherv, .in = at::ones({2})};
  Operation theirs{.kind = OperationKind::all_gatherv, .in = at::ones({3, 3})};
  EXPECT_EQ(seen_by(0, mine, 1, theirs), "");
}

TEST(Header, SendMeetsOnlyTheReceiveThatNamesIt) {
  Operation send{.kind = OperationKind::send, .root = 1, .in = at::ones({2})};
  Operation recv{.kind = OperationKind::recv, .root = 0, .out = at::ones({2})};
  Operation from_another{.kind = OperationKind::recv, .root = 2, .out = at::ones({2})};
  Operation of_another_size{.kind = OperationKind::recv, .root = 0, .out = at::ones({3})};
  EXPECT_EQ(seen_by(0, send, 1, recv), "");
  EXPECT_NE(seen_by(0, send, 1, from_another), "");
  EXPECT_NE(seen_by(0, send, 1, of_another_size), "");
}

TEST(Header, RefusesWhatIsNoMessage) {
  Frame noise{};
  noise.bytes.fill(std::byte{0x5a});
  EXPECT_THROW(check_headers(make_header({}, nullptr, 0), 0, noise, 1, "world"), CommError);
}

TEST(Header, AnAbortCarriesItsCause) {
  Frame frame = abort_frame(2, "rank 2 ran out of memory");
  try {
    check_headers(make_header({}, nullptr, 0), 0, frame, 2, "world");
    FAIL() << "no failure";
  } catch (const TransportFailure& failure) {
    EXPECT_EQ(failure.kind, TransportFailure::Kind::aborted);
    EXPECT_EQ(failure.detail, "rank 2 ran out of memory");
    EXPECT_EQ(failure.peer, 2);
  }
}

}  // namespace
}  // namespace muster::comm
