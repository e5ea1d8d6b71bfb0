#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/site_filter.h"
#include "muster/device/detail/order.h"
#include "parallel/device_training.h"

namespace muster::parallel::on_device {
namespace {

/// The sites of this room that were passed.
std::set<std::string> passed() {
  auto sites = device::SiteFilter::passed();
  std::erase_if(sites, [](const std::string& name) {
    const auto room = name.substr(0, name.find(':'));
    return room != "ddp" && room != "fsdp" && room != "buffers" && room != "powersgd";
  });
  return sites;
}

/// Also ends what a run without a site has left to the devices, which report it to whoever waits for them next.
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
  std::set<std::string> sites = {};
};

/// What shows that the site is missing; empty: nothing.
std::string noticed(const std::string& site, const Case& one) {
  device::SiteFilter::leave_out(site);
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

/// Sites without which nothing is wrong, and why they are there.
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

TEST(DeviceSites, AreAllNeeded) {
  sim::install();
  auto all = cases();
  sim::set_on_race(sim::OnRace::collect);
  std::optional<device::SiteFilter> filter(std::in_place);
  std::set<std::string> sites;
  for (auto& one : all) {
    one.expected = on_the_cpu(one.ranks, one.how);
    EXPECT_EQ(noticed("", one), "");
    one.sites = passed();
    sites.insert(one.sites.begin(), one.sites.end());
  }
  EXPECT_GE(sites.size(), 15U);
  for (const auto& site : sites) {
    std::string shown, how;
    for (const auto& one : all)
      if (shown.empty() && one.sites.contains(site)) shown = noticed(site, one), how = text_of(one.how);
    device::print_need(site, shown.empty() ? "" : how + ": " + shown);
    if (kOfSpeed.contains(site)) EXPECT_EQ(shown, "") << site;
    else EXPECT_NE(shown, "") << site;
  }
  filter.reset();
  start_again(1);
  sim::set_on_race(sim::OnRace::raise);
}

}  // namespace
}  // namespace muster::parallel::on_device
