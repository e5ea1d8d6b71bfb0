#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/order.h"
#include "device/sync_point_filter.h"
#include "parallel/device_training.h"

namespace muster::parallel::on_device {
namespace {

/// The points of this room that were passed.
std::set<std::string> passed() {
  auto points = device::SyncPointFilter::passed();
  std::erase_if(points, [](const std::string& name) {
    const auto room = name.substr(0, name.find(':'));
    return room != "ddp" && room != "fsdp" && room != "buffers" && room != "powersgd";
  });
  return points;
}

/// Also ends what a run without a point has left to the devices, which report it to whoever waits for them next.
void start_again(uint64_t seed) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    try {
      sim::set_seed(seed);
      break;
    } catch (const std::exception&) {}
  }
  (void)sim::take_races();
}

struct Case {
  int ranks = 2;
  Managed how;
  std::vector<std::vector<at::Tensor>> expected = {};
  std::set<std::string> points = {};
};

/// What shows that the point is missing; empty: nothing.
std::string noticed(const std::string& point, const Case& one) {
  device::SyncPointFilter::leave_out(point);
  start_again(1);
  const auto difference = compared(one.expected, one.how, /*side_stream=*/true);
  std::string race;
  try {
    sim::set_seed(1);
  } catch (const std::exception& error) {
    race = error.what();
  }
  for (const auto& found : sim::take_races()) race = found.text();
  return race.empty() ? difference : "race: " + race;
}

/// "fsdp, two streams, written parameters".
std::string text_of(const Managed& how) {
  std::string text = how.name;
  const auto add = [&](bool is, const std::string& what) { text += is ? ", " + what : ""; };
  add(how.comm_hook != "none", how.comm_hook);
  add(how.bucket_mb < 1, "small buckets");
  add(how.streams != Streams::one, how.streams == Streams::two ? "two streams" : "streams of forward and backward");
  add(how.again, "layers computed again");
  add(how.unfreezes, "unfrozen layers");
  add(how.misses, "a rank without a batch");
  add(how.writes, "written parameters");
  add(how.kept_over > 0, "kept after forward");
  add(!how.param_dtype.empty(), "parameters in bfloat16");
  add(!how.reduce_dtype.empty(), "reduced in bfloat16");
  return text;
}

/// Synchronization points without which nothing is wrong, and why they are there.
const std::set<std::string> kOfSpeed{
    "ddp: buckets are communicated on a stream of their own",  // else a stream of backward waits for the others
    "powersgd: a first factor is copied to the device",        // else the host waits for the copy
};

std::vector<Case> cases() {
  std::vector<Case> all{
      {.how = {.bucket_mb = 0.001, .comm_hook = "powersgd", .streams = Streams::two}},
      {.how = {.bucket_mb = 0.001, .streams = Streams::two, .again = true}},
      {.how = {.bucket_mb = 0.001, .streams = Streams::beside}},
      {.how = {.bucket_mb = 0.001, .streams = Streams::two, .unfreezes = true}},
      {.how = {.bucket_mb = 0.001, .streams = Streams::beside, .again = true}},
      {.how = {.name = "fsdp", .unit_elements = 1 << 20}},
      {.how = {.name = "zero2", .param_dtype = "bf16"}},
      {.ranks = 4, .how = {.name = "fsdp", .kept_over = 2, .streams = Streams::two}},
  };
  for (const char* name : {"zero1", "zero2"}) all.push_back({.how = {.name = name, .misses = true}});
  for (const char* name : {"zero1", "zero2", "fsdp"}) {
    all.push_back({.how = {.name = name, .streams = Streams::two, .evaluates = true, .writes = true}});
    all.push_back({.how = {.name = name, .reduce_dtype = "bf16", .streams = Streams::beside}});
  }
  for (auto& one : all) one.how.clips = false;  // the sum over ranks of a norm orders what comes after it
  return all;
}

TEST(DeviceSyncPoints, AreAllNeeded) {
  sim::install();
  auto all = cases();
  sim::set_on_race(sim::OnRace::collect);
  std::optional<device::SyncPointFilter> filter(std::in_place);
  std::set<std::string> points;
  for (auto& one : all) {
    one.expected = on_the_cpu(one.ranks, one.how);
    EXPECT_EQ(noticed("", one), "");
    one.points = passed();
    points.insert(one.points.begin(), one.points.end());
  }
  EXPECT_GE(points.size(), 15U);
  for (const auto& point : points) {
    std::string shown, how;
    for (const auto& one : all)
      if (shown.empty() && one.points.contains(point)) shown = noticed(point, one), how = text_of(one.how);
    device::print_need(point, shown.empty() ? "" : how + ": " + shown);
    if (kOfSpeed.contains(point)) EXPECT_EQ(shown, "") << point;
    else EXPECT_NE(shown, "") << point;
  }
  filter.reset();
  start_again(1);
  sim::set_on_race(sim::OnRace::raise);
}

}  // namespace
}  // namespace muster::parallel::on_device
