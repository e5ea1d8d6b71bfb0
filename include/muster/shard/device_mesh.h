#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/comm/communicator.h"

namespace muster {

/// One axis of a mesh.
struct MeshAxis {
  std::string name;
  int size = 0;  ///< in the constructor, 0 for at most one axis: computed from the others
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

/// The ranks of a group on a grid with named axes, the last axis fastest: with axes {"replicate", 2} and {"shard", 4},
/// ranks 0 to 3 and 4 to 7 are the two shard groups; 0 and 4, 1 and 5, ... are the replicate groups. A cheap handle to
/// shared groups.
/// Thread safety: as Communicator.
class DeviceMesh {
 public:
  /// Makes the groups of every axis. Collective: every rank of the group, with equal axes.
  /// Throws: ConfigError (MU090) if the sizes do not multiply to the size of the group; ConfigError (MU091) for no
  /// axes, an empty or repeated name, or a negative size.
  DeviceMesh(comm::Communicator group, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const noexcept { return axes_; }
  int dim() const noexcept { return static_cast<int>(axes_.size()); }
  /// Ranks in the mesh.
  int size() const noexcept;

  // All functions that take an axis throw ConfigError (MU092), listing the existing axes, for an unknown one.

  int size(std::string_view axis) const;
  /// This rank's coordinate on the axis, from 0.
  int coordinate(std::string_view axis) const;
  /// The ranks that have this rank's coordinates on all other axes, in order of their coordinate on this axis.
  const comm::Communicator& group(std::string_view axis) const;
  /// The rank, in the group of the constructor, at these coordinates; one coordinate for each axis.
  /// Throws: ConfigError (MU093) for another number of coordinates, or one beyond its axis.
  int rank_at(const std::vector<int>& coordinates) const;

  /// The submesh along these axes that contains this rank, with the axes in the order of the mesh. Communicates
  /// nothing.
  /// Throws: ConfigError (MU091) for no axes or a repeated one.
  DeviceMesh slice(const std::vector<std::string>& axes) const;
  /// The mesh with adjacent axes merged into one. Collective: every rank of the group of the constructor.
  /// Throws: ConfigError (MU094) if they are not adjacent in this order, or if this is a slice.
  DeviceMesh join(const std::vector<std::string>& axes, const std::string& name) const;

  /// "replicate 2 x shard 4".
  std::string describe() const;

 private:
  DeviceMesh() = default;
  size_t index_of(std::string_view axis) const;
  void make_groups();

  comm::Communicator whole_;  // of the constructor
  std::vector<MeshAxis> axes_;
  std::vector<int> strides_, coordinates_;  // per axis
  std::vector<comm::Communicator> groups_;
  int origin_ = 0;  // rank in `whole_` of the place with all coordinates 0
  bool sliced_ = false;
};

}  // namespace muster
