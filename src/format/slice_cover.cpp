#include <algorithm>
#include <tuple>

#include "muster/base/error.h"
#include "muster/base/shown.h"
#include "muster/format/manifest.h"

namespace muster::format {
namespace {

class CoverCheck {
 public:
  explicit CoverCheck(std::string_view folder) : folder_(folder) {}

  /// `parts` are all of one name, by begin.
  void operator()(std::span<const SlicePart> parts) const {
    const SlicePart& first = parts.front();
    const std::int64_t elements = elements_of(first);
    std::int64_t covered = 0;
    const SlicePart* last = nullptr;
    for (const SlicePart& part : parts) {
      if (part.shape != first.shape || part.dtype != first.dtype)
        refuse(part, "has shape " + shape_text(part) + " and dtype " + part.dtype + " there, but shape " +
                         shape_text(first) + " and dtype " + first.dtype + " on rank " + std::to_string(first.rank));
      if (part.begin < 0 || part.count < 0 || part.begin > elements || part.count > elements - part.begin)
        refuse(part, "has elements " + range(part) + " there, beyond its " + std::to_string(elements));
      if (part.count == 0) continue;
      if (part.begin < covered)
        refuse(part, "has elements " + range(part) + " there, which overlap elements " + range(*last) + " of rank " +
                         std::to_string(last->rank));
      if (part.begin > covered) refuse_gap(part, covered, part.begin);
      covered = part.begin + part.count;
      last = &part;
    }
    if (covered < elements) refuse_gap(first, covered, elements);
  }

 private:
  static std::string range(const SlicePart& part) {
    return std::to_string(part.begin) + " to " + std::to_string(part.begin + part.count);
  }

  static std::string shape_text(const SlicePart& part) {
    std::string text = "[";
    for (const std::int64_t size : part.shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
    return text + "]";
  }

  std::int64_t elements_of(const SlicePart& part) const {
    std::int64_t elements = 1;
    bool is_empty = false;
    for (const std::int64_t size : part.shape) {
      is_empty |= size == 0;
      if (size < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements))
        refuse(part, "has the impossible shape " + shape_text(part));
    }
    return is_empty ? 0 : elements;
  }

  [[noreturn]] void refuse(const SlicePart& part, const std::string& what) const {
    throw CheckpointError("MU214", std::string(folder_) + ": the slices of tensor " + in_quotes(part.name) +
                                       " do not fit together: on rank " + std::to_string(part.rank) + " it " + what +
                                       "; nothing was saved or loaded. Each element must be held by exactly one rank");
  }

  [[noreturn]] void refuse_gap(const SlicePart& part, std::int64_t begin, std::int64_t end) const {
    throw CheckpointError("MU214", std::string(folder_) + ": the slices of tensor " + in_quotes(part.name) +
                                       " do not fit together: no rank holds elements " + std::to_string(begin) +
                                       " to " + std::to_string(end) + " of shape " + shape_text(part) +
                                       "; nothing was saved or loaded. Each element must be held by exactly one rank");
  }

  std::string_view folder_;
};

}  // namespace

void check_slices(std::vector<SlicePart> parts, std::string_view folder) {
  std::sort(parts.begin(), parts.end(), [](const SlicePart& a, const SlicePart& b) {
    return std::tie(a.name, a.begin, a.count, a.rank) < std::tie(b.name, b.begin, b.count, b.rank);
  });
  const CoverCheck check(folder);
  for (std::size_t first = 0, end = 0; first < parts.size(); first = end) {
    while (end < parts.size() && parts[end].name == parts[first].name) ++end;
    check(std::span(parts).subspan(first, end - first));
  }
}

}  // namespace muster::format
