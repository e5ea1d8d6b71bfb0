#include "dist/header.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::dist {
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
  std::string words = "MU050: rank 0 called all_reduce(sum) of float32 [4, 3], rank 1 called broadcast(root 0) of float32 [12], "
                      "operation 17 of group world.";
  EXPECT_TRUE(seen_by(0, reduce, 1, cast).starts_with(words)) << seen_by(0, reduce, 1, cast);
  EXPECT_TRUE(seen_by(1, cast, 0, reduce).starts_with(words)) << seen_by(1, cast, 0, reduce);
}

TEST(Header, TellsDifferentPositions) {
  Operation mine{.kind = OperationKind::barrier, .sequence = 3}, theirs{.kind = OperationKind::barrier, .sequence = 4};
  EXPECT_NE(seen_by(0, mine, 1, theirs).find("operation 3 on rank 0 and 4 on rank 1"), std::string::npos);
}

TEST(Header, TellsLabelsApartThatAgreeInAllElse) {
  Operation mine{.kind = OperationKind::all_gather, .in = at::ones({2}), .label = "unit 'a'"}, theirs = mine;
  EXPECT_EQ(seen_by(0, mine, 1, theirs), "");
  theirs.label = "unit 'b'";
  EXPECT_NE(seen_by(0, mine, 1, theirs).find("rank 0 called all_gather of float32 [2] for unit 'a', rank 1 called all_gather of float32 [2] for unit 'b'"),
            std::string::npos) << seen_by(0, mine, 1, theirs);
  mine.label = std::string(100, 'x') + "1", theirs.label = std::string(100, 'x') + "2";   // shown in part, compared whole
  EXPECT_NE(seen_by(0, mine, 1, theirs), "");
}

TEST(Header, AgreesWhereShapesMayDiffer) {
  Operation mine{.kind = OperationKind::all_gather_uneven, .in = at::ones({2})};
  Operation theirs{.kind = OperationKind::all_gather_uneven, .in = at::ones({3, 3})};
  EXPECT_EQ(seen_by(0, mine, 1, theirs), "");
}

TEST(Header, SendMeetsOnlyTheReceiveThatNamesIt) {
  Operation send{.kind = OperationKind::send, .root = 1, .in = at::ones({2})};
  Operation receive{.kind = OperationKind::receive, .root = 0, .out = at::ones({2})};
  Operation from_another{.kind = OperationKind::receive, .root = 2, .out = at::ones({2})};
  Operation of_another_size{.kind = OperationKind::receive, .root = 0, .out = at::ones({3})};
  EXPECT_EQ(seen_by(0, send, 1, receive), "");
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
}  // namespace muster::dist
