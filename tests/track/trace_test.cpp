#include "muster/track/trace.h"

#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster {
namespace {

using namespace std::chrono_literals;

TEST(Trace, RecordsOnlyWhileItIsOn) {
  Trace trace;
  { TraceScope before(trace, "before"); }
  trace.start();
  { TraceScope within(trace, "within", "data"); }
  {
    TraceScope open(trace, "open at the end");
    trace.stop();
  }
  { TraceScope after(trace, "after"); }
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].name, "within");
  EXPECT_EQ(spans[0].track, "data");
  EXPECT_LE(spans[0].begin, spans[0].end);
  trace.start();
  EXPECT_TRUE(trace.spans().empty());
}

TEST(Trace, TakesSpansFromManyThreads) {
  Trace trace;
  trace.start();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int k = 0; k < 100; ++k) TraceScope(trace, "span");
      });
  }
  EXPECT_EQ(trace.spans().size(), 400u);
}

TEST(Trace, WritesChromeEvents) {
  const Trace::Clock::time_point zero{};
  const auto text = chrome_events({{"a \"b\"", "main", zero + 1ms, zero + 3ms},
                                   {"sum", "collectives", zero + 2ms, zero + 2500us, 64},
                                   {"c", "main", zero + 4ms, zero + 5ms}},
                                  3, zero + 1ms);
  const auto events = nlohmann::json::parse("[" + text + "]");
  ASSERT_EQ(events.size(), 6u);  // the process, two tracks, three spans
  EXPECT_EQ(events[0]["args"]["name"], "rank 3");
  EXPECT_EQ(events[2]["name"], "a \"b\"");
  EXPECT_EQ(events[2]["ts"], 0.0);
  EXPECT_EQ(events[2]["dur"], 2000.0);
  EXPECT_FALSE(events[2].contains("args"));
  EXPECT_EQ(events[4]["args"]["bytes"], 64);
  EXPECT_EQ(events[4]["ts"], 1000.0);
  EXPECT_NE(events[4]["tid"], events[2]["tid"]);
  EXPECT_EQ(events[5]["tid"], events[2]["tid"]);
  for (const auto& event : events) EXPECT_EQ(event["pid"], 3);
}

}  // namespace
}  // namespace muster
