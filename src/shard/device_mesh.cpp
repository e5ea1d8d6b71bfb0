#include "muster/shard/device_mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "muster/base/error.h"

namespace muster {
namespace {

std::string described(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const auto& axis : axes) text += (text.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
  return text.empty() ? "no axes" : text;
}

int product(const std::vector<MeshAxis>& axes) {
  return std::accumulate(axes.begin(), axes.end(), 1, [](int sum, const MeshAxis& axis) { return sum * axis.size; });
}

void check_names(const std::vector<MeshAxis>& axes) {
  std::set<std::string> names;
  bool fine = !axes.empty();
  for (const auto& axis : axes) fine = fine && !axis.name.empty() && axis.size >= 0 && names.insert(axis.name).second;
  if (!fine)
    throw ConfigError("MU091", "a mesh cannot have " + described(axes) +
                                   ": it has at least one axis, each with a name of its own and a size of at least 0");
}

std::vector<MeshAxis> with_free_axis(std::vector<MeshAxis> axes, int ranks) {
  check_names(axes);
  const auto asked = described(axes);
  const auto is_free = [](const MeshAxis& axis) { return axis.size == 0; };
  const auto free = std::find_if(axes.begin(), axes.end(), is_free);
  if (free != axes.end()) {
    free->size = 1;
    const int others = product(axes);
    free->size = others > 0 ? ranks / others : 0;
  }
  if (product(axes) != ranks)
    throw ConfigError(
        "MU090",
        "a mesh of " + asked + " cannot be laid over " + std::to_string(ranks) +
            " ranks: the sizes must multiply to that; give one axis the size 0 to have it take what the others leave");
  return axes;
}

}  // namespace

DeviceMesh::DeviceMesh(comm::Communicator group, std::vector<MeshAxis> axes)
    : whole_(std::move(group)), axes_(with_free_axis(std::move(axes), whole_.size())) {
  strides_.resize(axes_.size());
  int stride = 1;
  for (size_t a = axes_.size(); a-- > 0; stride *= axes_[a].size) strides_[a] = stride;
  for (size_t a = 0; a < axes_.size(); ++a) coordinates_.push_back(whole_.rank() / strides_[a] % axes_[a].size);
  make_groups();
}

void DeviceMesh::make_groups() {
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (axes_[a].size == whole_.size()) {
      groups_.push_back(whole_);
      continue;
    }
    groups_.emplace_back();
    if (axes_[a].size == 1) continue;
    for (int first = 0; first < whole_.size(); ++first) {
      if (first / strides_[a] % axes_[a].size != 0) continue;
      std::vector<int> ranks;
      for (int i = 0; i < axes_[a].size; ++i) ranks.push_back(first + i * strides_[a]);
      auto made = whole_.as_library("a device mesh").subgroup(ranks);
      if (std::find(ranks.begin(), ranks.end(), whole_.rank()) != ranks.end()) groups_.back() = std::move(made);
    }
  }
}

int DeviceMesh::size() const noexcept { return product(axes_); }

size_t DeviceMesh::index_of(std::string_view axis) const {
  for (size_t a = 0; a < axes_.size(); ++a)
    if (axes_[a].name == axis) return a;
  throw ConfigError("MU092", "the mesh has no axis '" + std::string(axis) + "'; it is " + describe());
}

int DeviceMesh::size(std::string_view axis) const { return axes_[index_of(axis)].size; }
int DeviceMesh::coordinate(std::string_view axis) const { return coordinates_[index_of(axis)]; }
const comm::Communicator& DeviceMesh::group(std::string_view axis) const { return groups_[index_of(axis)]; }

int DeviceMesh::rank_at(const std::vector<int>& coordinates) const {
  bool fine = coordinates.size() == axes_.size();
  int rank = origin_;
  for (size_t a = 0; fine && a < axes_.size(); ++a) {
    fine = coordinates[a] >= 0 && coordinates[a] < axes_[a].size;
    rank += coordinates[a] * strides_[a];
  }
  if (!fine) {
    std::string text;
    for (const auto at : coordinates) text += (text.empty() ? "" : ", ") + std::to_string(at);
    throw ConfigError("MU093", "there is no place (" + text + ") in a mesh of " + describe() +
                                   "; give one coordinate for each axis, from 0");
  }
  return rank;
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& axes) const {
  std::set<size_t> kept;
  for (const auto& axis : axes) kept.insert(index_of(axis));
  if (kept.size() != axes.size() || kept.empty())
    throw ConfigError("MU091", "a slice of a mesh of " + describe() + " names at least one axis, and none twice");
  DeviceMesh part;
  part.whole_ = whole_;
  part.sliced_ = sliced_ || kept.size() < axes_.size();
  part.origin_ = origin_;
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (!kept.contains(a)) {
      part.origin_ += coordinates_[a] * strides_[a];
      continue;
    }
    part.axes_.push_back(axes_[a]);
    part.strides_.push_back(strides_[a]);
    part.coordinates_.push_back(coordinates_[a]);
    part.groups_.push_back(groups_[a]);
  }
  return part;
}

DeviceMesh DeviceMesh::join(const std::vector<std::string>& axes, const std::string& name) const {
  const auto refuse = [&](const char* why) -> ConfigError {
    std::string text;
    for (const auto& axis : axes) text += (text.empty() ? "" : ", ") + axis;
    return ConfigError("MU094", "the axes " + text + " of a mesh of " + describe() + " cannot become one: " + why);
  };
  if (sliced_) throw refuse("this is a slice; join them in the whole mesh and slice that");
  if (axes.empty()) throw refuse("there are none");
  const auto first = index_of(axes.front());
  std::vector<MeshAxis> joined(axes_.begin(), axes_.begin() + static_cast<std::ptrdiff_t>(first));
  joined.push_back({name, 1});
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto a = index_of(axes[i]);
    if (a != first + i) throw refuse("name neighbours in the order in which they stand in the mesh");
    joined.back().size *= axes_[a].size;
  }
  joined.insert(joined.end(), axes_.begin() + static_cast<std::ptrdiff_t>(first + axes.size()), axes_.end());
  return DeviceMesh(whole_, std::move(joined));
}

std::string DeviceMesh::describe() const { return described(axes_); }

}  // namespace muster
