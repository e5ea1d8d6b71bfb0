#include "shard/device_mesh.h"

#include <numeric>
#include <set>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster {
namespace {

std::string described(const std::vector<MeshDim>& dims) {
  if (dims.empty()) return "no mesh dims";
  return joined_by(" x ", dims, [](const MeshDim& dim) { return dim.name + " " + std::to_string(dim.size); });
}

int product(const std::vector<MeshDim>& dims) {
  return std::accumulate(dims.begin(), dims.end(), 1, [](int sum, const MeshDim& dim) { return sum * dim.size; });
}

std::vector<MeshDim> with_free_dim(std::vector<MeshDim> dims, int ranks) {
  std::set<std::string> names;
  bool fine = !dims.empty();
  for (const auto& dim : dims) fine = fine && !dim.name.empty() && dim.size >= 0 && names.insert(dim.name).second;
  if (!fine)
    throw ConfigError("MU091",
                      "a mesh cannot have " + described(dims) +
                          ": it has at least one mesh dim, each with a name of its own and a size of at least 0");
  const auto asked = described(dims);
  const auto is_free = [](const MeshDim& dim) { return dim.size == 0; };
  const auto free = std::find_if(dims.begin(), dims.end(), is_free);
  if (free != dims.end()) {
    free->size = 1;
    const int others = product(dims);
    free->size = others > 0 ? ranks / others : 0;
  }
  if (product(dims) != ranks)
    throw ConfigError("MU090", "a mesh of " + asked + " cannot be laid over " + std::to_string(ranks) +
                                   " ranks: the sizes must multiply to that; give one mesh dim the size 0 to have it "
                                   "take what the others leave");
  return dims;
}

}  // namespace

DeviceMesh::DeviceMesh(comm::Communicator group, std::vector<MeshDim> dims)
    : whole_(std::move(group)), dims_(with_free_dim(std::move(dims), whole_.size())) {
  strides_.resize(dims_.size());
  int stride = 1;
  for (size_t a = dims_.size(); a-- > 0; stride *= dims_[a].size) strides_[a] = stride;
  for (size_t a = 0; a < dims_.size(); ++a) coordinates_.push_back(whole_.rank() / strides_[a] % dims_[a].size);
  for (size_t a = 0; a < dims_.size(); ++a) {
    if (dims_[a].size == whole_.size()) {
      groups_.push_back(whole_);
      continue;
    }
    groups_.emplace_back();
    if (dims_[a].size == 1) continue;
    for (int first = 0; first < whole_.size(); ++first) {
      if (first / strides_[a] % dims_[a].size != 0) continue;
      std::vector<int> ranks;
      for (int i = 0; i < dims_[a].size; ++i) ranks.push_back(first + i * strides_[a]);
      auto made = whole_.internal("a device mesh").subgroup(ranks);
      if (std::find(ranks.begin(), ranks.end(), whole_.rank()) != ranks.end()) groups_.back() = std::move(made);
    }
  }
}

int DeviceMesh::size() const noexcept { return product(dims_); }

size_t DeviceMesh::index_of(std::string_view dim) const {
  for (size_t a = 0; a < dims_.size(); ++a)
    if (dims_[a].name == dim) return a;
  throw ConfigError("MU092", "the mesh has no mesh dim '" + std::string(dim) + "'; it is " + describe());
}

int DeviceMesh::size(std::string_view dim) const { return dims_[index_of(dim)].size; }
int DeviceMesh::coordinate(std::string_view dim) const { return coordinates_[index_of(dim)]; }
const comm::Communicator& DeviceMesh::group(std::string_view dim) const { return groups_[index_of(dim)]; }

int DeviceMesh::rank_at(const std::vector<int>& coordinates) const {
  bool fine = coordinates.size() == dims_.size();
  int rank = origin_;
  for (size_t a = 0; fine && a < dims_.size(); ++a) {
    fine = coordinates[a] >= 0 && coordinates[a] < dims_[a].size;
    rank += coordinates[a] * strides_[a];
  }
  if (!fine)
    throw ConfigError("MU093", "there is no place (" + joined(coordinates) + ") in a mesh of " + describe() +
                                   "; give one coordinate for each mesh dim, from 0");
  return rank;
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& dims) const {
  std::set<size_t> kept;
  for (const auto& dim : dims) kept.insert(index_of(dim));
  if (kept.size() != dims.size() || kept.empty())
    throw ConfigError("MU091", "a slice of a mesh of " + describe() + " names at least one mesh dim, and none twice");
  DeviceMesh part;
  part.whole_ = whole_;
  part.sliced_ = sliced_ || kept.size() < dims_.size();
  part.origin_ = origin_;
  for (size_t a = 0; a < dims_.size(); ++a) {
    if (!kept.contains(a)) {
      part.origin_ += coordinates_[a] * strides_[a];
      continue;
    }
    part.dims_.push_back(dims_[a]);
    part.strides_.push_back(strides_[a]);
    part.coordinates_.push_back(coordinates_[a]);
    part.groups_.push_back(groups_[a]);
  }
  return part;
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& dims, const std::string& name) const {
  const auto refuse = [&](const char* why) -> ConfigError {
    return ConfigError("MU094",
                       "the mesh dims " + joined(dims) + " of a mesh of " + describe() + " cannot become one: " + why);
  };
  if (sliced_) throw refuse("this is a slice; flatten them in the whole mesh and slice that");
  if (dims.empty()) throw refuse("there are none");
  const auto first = index_of(dims.front());
  std::vector<MeshDim> merged(dims_.begin(), dims_.begin() + static_cast<std::ptrdiff_t>(first));
  merged.push_back({name, 1});
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto a = index_of(dims[i]);
    if (a != first + i) throw refuse("name neighbours in the order in which they stand in the mesh");
    merged.back().size *= dims_[a].size;
  }
  merged.insert(merged.end(), dims_.begin() + static_cast<std::ptrdiff_t>(first + dims.size()), dims_.end());
  return DeviceMesh(whole_, std::move(merged));
}

std::string DeviceMesh::describe() const { return described(dims_); }

}  // namespace muster
