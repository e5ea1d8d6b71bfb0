#pragma once  // for other rooms

#include "muster/comm/communicator.h"

namespace muster {

/// One dim of a mesh.
struct MeshDim {
  std::string name;
  int size = 0;  ///< ranks along this dim; in the constructor, 0 in at most one mesh dim: computed from the others
  friend bool operator==(const MeshDim&, const MeshDim&) = default;
};

/// The ranks of a group on a grid with named dims, the last one fastest: with the mesh dims {"replicate", 2} and
/// {"shard", 4}, ranks 0 to 3 and 4 to 7 are the two shard groups; 0 and 4, 1 and 5, ... are the replicate groups. A
/// cheap handle to shared groups. Thread safety: that of Communicator.
class DeviceMesh {
 public:
  /// Makes the groups of every mesh dim. Collective: every rank of the group, with equal mesh dims.
  /// Throws: ConfigError (MU090) if the sizes do not multiply to the size of the group; ConfigError (MU091) for no mesh
  /// dims, an empty or repeated name, or a negative size.
  DeviceMesh(comm::Communicator group, std::vector<MeshDim> dims);

  const std::vector<MeshDim>& dims() const noexcept { return dims_; }
  /// Number of ranks in the mesh.
  int size() const noexcept;

  // All functions that take a mesh dim throw ConfigError (MU092), listing the existing mesh dims, for an unknown one.

  int size(std::string_view dim) const;
  /// This rank's coordinate on the mesh dim, from 0.
  int coordinate(std::string_view dim) const;
  /// The ranks that have this rank's coordinates on all other mesh dims, in order of their coordinate on this mesh dim.
  const comm::Communicator& group(std::string_view dim) const;
  /// The rank, in the group passed to the constructor, at these coordinates; one coordinate for each mesh dim.
  /// Throws: ConfigError (MU093) for a wrong number of coordinates, or for a coordinate outside its mesh dim.
  int rank_at(const std::vector<int>& coordinates) const;

  /// The submesh along these mesh dims that contains this rank, with its dims in the order of the mesh.
  /// Communicates nothing. Throws: ConfigError (MU091) for no mesh dims or a repeated one.
  DeviceMesh slice(const std::vector<std::string>& dims) const;
  /// The mesh with adjacent mesh dims merged into one. Collective: every rank of the group passed to the constructor.
  /// Throws: ConfigError (MU094) if the dims are not adjacent in this order, or if this mesh came from slice().
  DeviceMesh flatten(const std::vector<std::string>& dims, const std::string& name) const;

  /// A text such as "replicate 2 x shard 4".
  std::string describe() const;

 private:
  DeviceMesh() = default;
  size_t index_of(std::string_view dim) const;

  comm::Communicator whole_;  // the group passed to the constructor
  std::vector<MeshDim> dims_;
  std::vector<int> strides_, coordinates_;  // one of each per mesh dim
  std::vector<comm::Communicator> groups_;
  int origin_ = 0;  // rank in `whole_` of the place whose coordinates are all 0
  bool sliced_ = false;
};

}  // namespace muster
