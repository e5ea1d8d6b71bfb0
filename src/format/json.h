#pragma once  // for other rooms

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// JSON values, parsed strictly and written identically everywhere. All functions are pure.
namespace muster::format {

/// A JSON value. Integers are distinct from numbers with a fraction or an exponent; names keep their order.
class Json {
 public:
  using List = std::vector<Json>;
  using Map = std::vector<std::pair<std::string, Json>>;

  Json() = default;
  Json(bool value) : value_(value) {}                      // NOLINT(google-explicit-constructor)
  Json(std::int64_t value) : value_(value) {}              // NOLINT(google-explicit-constructor)
  Json(double value) : value_(value) {}                    // NOLINT(google-explicit-constructor)
  Json(std::string value) : value_(std::move(value)) {}    // NOLINT(google-explicit-constructor)
  Json(const char* value) : value_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Json(List value) : value_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  Json(Map value) : value_(std::move(value)) {}            // NOLINT(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  /// The value, or nullptr if it has another type.
  template <class T>
  const T* get() const {
    return std::get_if<T>(&value_);
  }
  /// The value under a name, or nullptr if there is none or this is not a map.
  const Json* find(std::string_view name) const;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map> value_;
};

/// Deepest nesting that is read or written.
inline constexpr int kMaxJsonDepth = 200;

/// Writes without white space. Numbers are bit-identical when read back.
/// Requires: numbers are finite, nesting is at most kMaxJsonDepth, text is UTF-8.
std::string to_text(const Json& value);

/// A name in a state without its escapes: "%2f" stands for a byte. nullopt if one is not hexadecimal.
std::optional<std::string> unescaped(std::string_view name);

/// Parses JSON that may be hostile: one value, UTF-8, no duplicate name, no integer beyond 64 bits.
/// Throws: CheckpointError with `id`: "`file`: why it is refused".
Json parse_json(std::string_view text, std::string_view file, std::string_view id);

}  // namespace muster::format
