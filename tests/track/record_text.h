#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "track/record.h"

namespace muster::track {

/// A record of that step, whose value is a text of that length.
inline std::string record_text(int64_t step, std::size_t length = 4) {
  const std::string text(length, 'x');
  const std::vector<LoggedValue> values{{"loss", text}};
  std::string bytes;
  encode({.step = step, .values = {}}, values, bytes);
  return bytes;
}

inline std::vector<int64_t> steps_in(const std::string& bytes) {
  std::vector<int64_t> steps;
  for (RecordReader reader(bytes); !reader.done();) steps.push_back(reader.next().step);
  return steps;
}

}  // namespace muster::track
