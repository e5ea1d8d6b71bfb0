#include <gtest/gtest.h>

#include "checks.h"
#include "format/python/pickle_graph.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

using namespace std::string_literals;
using Kind = PickleNode::Kind;
using checks::expect_error;

struct ReadPickle {
  std::string bytes;
  PickleGraph graph;
  std::uint32_t root = 0;
  const PickleNode& node() const { return graph.at(root); }
  const PickleNode& item(std::size_t i) const { return graph.at(graph.items(node()).at(i)); }
};

ReadPickle read_one(std::string bytes) {
  ReadPickle result{.bytes = std::move(bytes), .graph = {}};
  std::size_t position = 0;
  result.root = read_pickle(result.bytes, position, result.graph, "file");
  EXPECT_EQ(position, result.bytes.size());
  return result;
}

void refuses_pickle(std::string_view words, const std::string& bytes) {
  expect_error<CheckpointError>("MU225", words, [&] { read_one(bytes); });
}

TEST(PickleMachineTest, ReadsNumbers) {
  EXPECT_EQ(read_one("K\x07."s).node().integer, 7);
  EXPECT_EQ(read_one("M\x01\x02."s).node().integer, 0x201);
  EXPECT_EQ(read_one("J\xff\xff\xff\xff."s).node().integer, -1);
  EXPECT_EQ(read_one("\x8a\x01\x80."s).node().integer, -128);
  EXPECT_EQ(read_one("\x8a\x00."s).node().integer, 0);
  EXPECT_EQ(read_one("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40."s).node().integer, std::int64_t{1} << 62);
  EXPECT_EQ(read_one("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x40\x00."s).node().kind, Kind::huge);
  EXPECT_EQ(read_one("G\xbf\xf8\x00\x00\x00\x00\x00\x00."s).node().number, -1.5);
  EXPECT_EQ(read_one("N."s).node().kind, Kind::none);
  EXPECT_EQ(read_one("\x88."s).node().integer, 1);
}

TEST(PickleMachineTest, ReadsContainersOfAllProtocols) {
  EXPECT_EQ(read_one("](K\x01K\x02"
                     "eK\x03"
                     "a."s)
                .graph.lists.back()
                .size(),
            3u);
  EXPECT_EQ(read_one("(K\x01K\x02t."s).item(1).integer, 2);
  EXPECT_EQ(read_one("K\x01K\x02K\x03\x87."s).item(2).integer, 3);
  const auto map = read_one(
      "}(X\x01\x00\x00\x00"
      "aK\x01"
      "uX\x01\x00\x00\x00"
      "bN"
      "s."s);
  EXPECT_EQ(map.graph.entries(map.node()).size(), 4u);
  EXPECT_EQ(read_one("\x8f(K\x01\x90."s).node().kind, Kind::set);
  EXPECT_EQ(read_one("\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00\x8c\x01"
                     "a."s)
                .node()
                .text,
            "a");
}

TEST(PickleMachineTest, SharesWhatIsKept) {
  const auto shared = read_one(
      "(]q\x05K\x01"
      "ah\x05t."s);
  EXPECT_EQ(shared.graph.items(shared.node())[0], shared.graph.items(shared.node())[1]);
  EXPECT_EQ(shared.graph.items(shared.item(1)).size(), 1u);
  const auto circle = read_one(
      "]\x94h\x00"
      "a."s);
  EXPECT_EQ(circle.graph.items(circle.node())[0], circle.root);
}

TEST(PickleMachineTest, DescribesCallsWithoutMakingThem) {
  const auto call = read_one(
      "cos\nsystem\n(X\x04\x00\x00\x00"
      "exitt"
      "R}b."s);
  EXPECT_EQ(call.node().kind, Kind::object);
  EXPECT_EQ(call.item(0).text, "os");
  EXPECT_EQ(call.item(0).name, "system");
  EXPECT_NE(call.node().state, 0u);
  EXPECT_EQ(read_one("\x8c\x02os\x8c\x06system\x93."s).node().kind, Kind::global);
  EXPECT_EQ(read_one("K\x01Q."s).node().kind, Kind::persistent);
}

TEST(PickleMachineTest, DropsItemsOfObjects) {
  for (const char* items : {"K\x01"
                            "a",
                            "(K\x01K\x02"
                            "e",
                            "(K\x01\x90"}) {
    const auto deque = read_one("ccollections\ndeque\n)R" + std::string(items) + ".");
    EXPECT_EQ(deque.node().kind, Kind::object);
    EXPECT_EQ(deque.graph.items(deque.node()).size(), 2u);
  }
}

TEST(PickleMachineTest, RefusesWhatPythonWouldNotWrite) {
  refuses_pickle("takes more than there is", "."s);
  refuses_pickle("takes more than there is", "(K\x01R."s);
  refuses_pickle("no mark", "t."s);
  refuses_pickle("never kept", "h\x01."s);
  refuses_pickle("unknown opcode 73", "I1\n."s);
  refuses_pickle("protocol 1", "\x80\x01N."s);
  refuses_pickle("key without a value", "}(K\x01u."s);
  refuses_pickle("takes nothing",
                 "K\x01K\x02"
                 "a."s);
  refuses_pickle("by something else than text", "K\x01K\x01\x93."s);
  refuses_pickle("named arguments", "cos\nsystem\n)}(K\x01K\x02u\x92."s);
}

TEST(PickleMachineTest, SaysWhereItIsCutOff) {
  const std::string whole =
      "}(X\x03\x00\x00\x00"
      "abcG\xbf\xf8\x00\x00\x00\x00\x00\x00u."s;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    PickleGraph graph;
    std::size_t position = 0;
    EXPECT_THROW(read_pickle(std::string_view(whole).substr(0, size), position, graph, "file"), PickleCutOff) << size;
  }
}

TEST(PickleMachineTest, LimitsTheNumberOfObjects) {
  refuses_pickle("more than 8388608 objects", std::string(kMaxPickleNodes + 1, ']'));
}

}  // namespace
}  // namespace muster::format
