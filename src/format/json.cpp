#include "format/json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

/// Builds a value event by event, because only events reveal duplicate names and the order of names.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json result;
  std::string reason;

  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(Json(value)); }
  bool number_integer(number_integer_t value) override { return put(Json(static_cast<std::int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return fail("it has an integer beyond 64 bits");
    return put(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    // The parser turns integers that are too long into floating-point numbers.
    if (text.find_first_of(".eE") == std::string::npos) return fail("it has an integer beyond 64 bits");
    return put(Json(value));
  }
  bool string(std::string& value) override { return put(Json(std::move(value))); }
  bool binary(binary_t&) override { return fail("it has binary data"); }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& name) override {
    open_.back().map.emplace_back().first = std::move(name);
    return true;
  }
  bool end_object() override {
    Json::Map map = std::move(open_.back().map);
    open_.pop_back();
    std::vector<std::string_view> names;
    for (const auto& [name, value] : map) names.push_back(name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) return fail("the name " + in_quotes(*twice) + " comes twice in it");
    return put(Json(std::move(map)));
  }
  bool end_array() override {
    Json::List list = std::move(open_.back().list);
    open_.pop_back();
    return put(Json(std::move(list)));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return fail("it is not JSON at byte " + std::to_string(position));
  }

 private:
  struct Open {
    bool is_map;
    Json::List list;
    Json::Map map;
  };

  bool fail(std::string why) {
    if (reason.empty()) reason = std::move(why);
    return false;
  }

  bool open(bool is_map) {
    if (open_.size() >= static_cast<std::size_t>(kMaxJsonDepth)) return fail("it is nested too deeply");
    open_.push_back({is_map, {}, {}});
    return true;
  }

  bool put(Json value) {
    if (open_.empty()) result = std::move(value);
    else if (open_.back().is_map) open_.back().map.back().second = std::move(value);
    else open_.back().list.push_back(std::move(value));
    return true;
  }

  std::vector<Open> open_;
};

void append_string(std::string& out, std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += '"';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (byte < 0x20 || byte == 0x7f) ((out += "\\u00") += kDigits[byte >> 4]) += kDigits[byte & 15];
    else if (byte == 0xc2 && next >= 0x80 && next < 0xa0)
      ++i, ((out += "\\u00") += kDigits[next >> 4]) += kDigits[next & 15];  // these control a terminal, too
    else out += c;
  }
  out += '"';
}

void append_number(std::string& out, double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";  // otherwise it would be read as an integer
}

void append(std::string& out, const Json& value) {
  if (value.is_null()) out += "null";
  if (const auto* truth = value.get<bool>()) out += *truth ? "true" : "false";
  if (const auto* integer = value.get<std::int64_t>()) out += std::to_string(*integer);
  if (const auto* number = value.get<double>()) append_number(out, *number);
  if (const auto* text = value.get<std::string>()) append_string(out, *text);
  if (const auto* list = value.get<Json::List>()) {
    out += '[';
    for (std::size_t i = 0; i < list->size(); ++i) append(i ? out += ',' : out, (*list)[i]);
    out += ']';
  }
  if (const auto* map = value.get<Json::Map>()) {
    out += '{';
    for (std::size_t i = 0; i < map->size(); ++i) {
      append_string(i ? out += ',' : out, (*map)[i].first);
      append(out += ':', (*map)[i].second);
    }
    out += '}';
  }
}

}  // namespace

const Json* Json::find(std::string_view name) const {
  const auto* map = get<Map>();
  if (!map) return nullptr;
  const auto found = std::find_if(map->begin(), map->end(), [&](const auto& entry) { return entry.first == name; });
  return found == map->end() ? nullptr : &found->second;
}

std::string to_text(const Json& value) {
  std::string out;
  append(out, value);
  return out;
}

std::optional<std::string> unescaped(std::string_view name) {
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '%') {
      text += name[i];
      continue;
    }
    const auto byte = bytes_of_hex(name.substr(i + 1, 2));
    if (!byte || byte->empty()) return std::nullopt;
    text += *byte;
    i += 2;
  }
  return text;
}

Json parse_json(std::string_view text, std::string_view file, std::string_view id) {
  JsonEvents events;
  // The parser takes a zero byte for the end and would ignore the bytes after it.
  if (text.find('\0') != std::string_view::npos) throw CheckpointError(id, std::string(file) + ": it has a zero byte");
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events))
    throw CheckpointError(id, std::string(file) + ": " + events.reason);
  return std::move(events.result);
}

}  // namespace muster::format
