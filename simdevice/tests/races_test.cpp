#include <vector>

#include "muster/base/error.h"
#include "muster/testing/thrown.h"
#include "simulated.h"

using muster::sim::device;

// Outside of the simulator's namespace, whose functions are not shown as places of a program.
__attribute__((noinline)) void fill_on(c10::Stream stream, const at::Tensor& tensor) {
  const c10::StreamGuard guard(stream);
  tensor.fill_(1);
}

__attribute__((noinline)) at::Tensor doubled(const at::Tensor& tensor) { return tensor * 2; }

namespace muster::sim {
namespace {

class SimRaces : public Simulated {
 protected:
  SimRaces() { set_on_race(OnRace::collect); }
  ~SimRaces() override {
    take_races();
    set_on_race(OnRace::raise);
  }
};

std::vector<std::string> pairs() {
  std::vector<std::string> all;
  for (const auto& race : take_races()) all.push_back(race.first.what + ", " + race.second.what);
  return all;
}
using Pairs = std::vector<std::string>;

TEST_F(SimRaces, NameBothOperatorsTheirPlacesAndStreams) {
  auto x = torch::zeros({100}, device(0));
  const auto other = side();
  wait_for(other, current());
  fill_on(other, x);
  (void)doubled(x);
  wait_for(current(), other);
  const auto races = take_races();
  ASSERT_EQ(races.size(), 1U);
  EXPECT_EQ(races[0].first.what, "aten::fill_");
  EXPECT_EQ(races[0].second.what, "aten::mul");
  EXPECT_EQ(races[0].second.stream, "sim:0 stream 0");
  EXPECT_TRUE(races[0].first.writes);
  EXPECT_FALSE(races[0].second.writes);
  EXPECT_TRUE(races[0].first.site.starts_with("fill_on(c10::Stream, at::Tensor const&)")) << races[0].first.site;
  EXPECT_TRUE(races[0].second.site.starts_with("doubled(at::Tensor const&)")) << races[0].second.site;
  EXPECT_NE(races[0].second.site.find(", called by muster::sim::(anonymous namespace)::SimRaces_NameBoth"),
            std::string::npos)
      << races[0].second.site;
}

TEST_F(SimRaces, AreThrownWhereTheHostWaits) {
  set_on_race(OnRace::raise);
  auto x = torch::zeros({100}, device(0));
  const auto other = side();
  fill_on(other, x);
  const auto message = testing::thrown([&] { (void)x.sum().item<float>(); });
  EXPECT_TRUE(message.starts_with("MU556: two accesses of the same bytes have no order: ")) << message;
  EXPECT_NE(message.find("(and "), std::string::npos) << message;
  wait_for(current(), other);  // now there is an order, but what the two have left is open
  x.fill_(1);
  EXPECT_EQ(x.sum().item<float>(), 100);
}

TEST_F(SimRaces, AreNoneBetweenBytesThatDoNotOverlap) {
  auto x = torch::zeros({8, 6}, device(0));
  const auto other = side();
  wait_for(other, current());
  fill_on(other, x.narrow(1, 0, 3));  // the left half of each row
  x.narrow(1, 3, 3).add_(1);
  x.narrow(0, 0, 0).add_(1);
  EXPECT_EQ(pairs(), Pairs{});
  x.narrow(1, 2, 2).add_(1);
  EXPECT_EQ(pairs(), (Pairs{"aten::fill_, aten::add"}));
  wait_for(current(), other);
}

TEST_F(SimRaces, AreNoneBetweenTwoReaders) {
  const auto x = torch::zeros({100}, device(0));
  const auto other = side();
  wait_for(other, current());
  at::Tensor sum;
  {
    const c10::StreamGuard guard(other);
    sum = x + 1;
  }
  (void)doubled(x);
  EXPECT_EQ(pairs(), Pairs{});
  at::Tensor(x).zero_();
  EXPECT_EQ(pairs(), (Pairs{"aten::add, aten::zero_"}));
  wait_for(current(), other);
}

TEST_F(SimRaces, EndWhereTheHostHasWaited) {
  auto x = torch::zeros({100}, device(0));
  const auto other = side();
  other.synchronize();
  current().synchronize();
  fill_on(other, x);
  c10::Event event(at::kPrivateUse1);
  event.record(other);
  event.synchronize();
  (void)doubled(x);
  fill_on(other, x);
  EXPECT_EQ(pairs(), (Pairs{"aten::mul, aten::fill_"}));
  while (!other.query()) {}
  (void)doubled(x);
  EXPECT_EQ(pairs(), Pairs{});
}

TEST_F(SimRaces, AnEventKnowsWhatCameBeforeIt) {
  auto x = torch::zeros({100}, device(0)), y = torch::zeros({100}, device(0));
  const auto first = side(), second = side();
  wait_for(first, current());
  fill_on(first, x);
  c10::Event event(at::kPrivateUse1);
  event.record(first);
  fill_on(first, y);            // not before the event
  event.block(second);          // what the second stream knows,
  wait_for(current(), second);  // the current one gets from it
  (void)doubled(x);
  EXPECT_EQ(pairs(), Pairs{});
  (void)doubled(y);
  EXPECT_EQ(pairs(), (Pairs{"aten::fill_, aten::mul"}));
  wait_for(current(), first);
}

TEST_F(SimRaces, MemoryBelongsToItsStream) {
  const auto other = side();
  const auto before = torch::zeros({100}, device(0));
  auto x = torch::empty({100}, device(0));
  fill_on(other, x);
  EXPECT_EQ(pairs(), (Pairs{"the allocation, aten::fill_"}));
  x.reset();
  EXPECT_EQ(pairs(), (Pairs{"aten::fill_, the release of the memory"}));
  auto y = torch::empty({100}, device(0));
  wait_for(other, current());
  fill_on(other, y);
  y.record_stream(other);
  y.reset();
  EXPECT_EQ(pairs(), Pairs{});
}

TEST_F(SimRaces, TheHostsAccessOfPinnedMemoryIsNamed) {
  auto buffer = torch::full({100}, 1.0).pin_memory();
  auto there = buffer.to(device(0), /*non_blocking=*/true);
  const auto sum = buffer.sum().item<float>();  // reading is right
  EXPECT_EQ(pairs(), Pairs{});
  buffer.fill_(2.0);
  auto races = take_races();
  ASSERT_EQ(races.size(), 1U);
  EXPECT_EQ(races[0].first.what + ", " + races[0].second.what, "copy to the device, the host");
  EXPECT_TRUE(races[0].second.writes);
  EXPECT_EQ(races[0].second.stream, "the host's own thread");
  EXPECT_NE(races[0].second.site.find("TheHostsAccessOfPinnedMemoryIsNamed"), std::string::npos)
      << races[0].second.site;
  buffer.fill_(3.0);  // is named once
  current().synchronize();
  EXPECT_EQ(pairs(), Pairs{});
  EXPECT_EQ(sum, 100);
  const auto back = there.to(at::kCPU, /*non_blocking=*/true);
  (void)back.sum().item<float>();
  EXPECT_EQ(pairs(), (Pairs{"copy to the host, the host"}));
}

TEST_F(SimRaces, AreNoneBetweenPartsOfPinnedMemory) {
  for (const int64_t size : {10, 5000}) {  // in one page, and in several
    const auto parts = torch::zeros({2, size}).pin_memory();
    const auto there = parts[0].to(device(0), /*non_blocking=*/true);
    parts[1].fill_(1.0);
    EXPECT_EQ(pairs(), Pairs{}) << size;
    EXPECT_EQ(there.sum().item<float>(), 0) << size;
    const auto next = parts[1].to(device(0), /*non_blocking=*/true);
    parts[1].fill_(2.0);
    EXPECT_EQ(pairs(), (Pairs{"copy to the device, the host"})) << size;
    current().synchronize();
  }
  auto back = torch::zeros({2, 5000}).pin_memory();
  back[0].copy_(torch::ones({5000}, device(0)), /*non_blocking=*/true);
  EXPECT_EQ(back[1].sum().item<float>(), 0);  // begins in the last page of the first
  EXPECT_EQ(pairs(), Pairs{});
  (void)back[0].sum();
  EXPECT_EQ(pairs(), (Pairs{"copy to the host, the host"}));
  current().synchronize();
}

TEST_F(SimRaces, AnAutogradNodeIsNamed) {
  auto x = torch::ones({4}, device(0)).requires_grad_();
  const auto y = (x * x).sum();
  const auto other = side();
  wait_for(other, current());
  fill_on(other, x.data());  // while backward reads it
  y.backward();
  const auto races = take_races();
  ASSERT_FALSE(races.empty());
  EXPECT_NE(races[0].second.site.find("in MulBackward0"), std::string::npos) << races[0].second.site;
  wait_for(current(), other);
}

TEST_F(SimRaces, AreNotLookedForWhereTheyAreIgnored) {
  auto x = torch::zeros({100}, device(0));
  set_on_race(OnRace::ignore);
  fill_on(side(), x);
  (void)doubled(x);
  current().synchronize();
  EXPECT_EQ(pairs(), Pairs{});
}

}  // namespace
}  // namespace muster::sim
