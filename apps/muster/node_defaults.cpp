#include "node_defaults.h"

#include "base/variables.h"
#include "cluster/reading.h"
#include "options/launcher_fields.h"

namespace muster::cli {
namespace {

bool are_several_nodes(const options::RawOptions& texts) {
  const auto found = texts.find("nodes");
  NodeRange nodes;
  return found != texts.end() && options::Value<NodeRange>::read(found->second.text, nodes).empty() && nodes.max > 1;
}

}  // namespace

void add_place_of_node(const Environment& variables, options::RawOptions& texts) {
  // A rank that starts other ranks by itself does so on its own node.
  if (variables.has(cluster::kJob)) return;
  const bool nodes_given = texts.contains("nodes");
  if (nodes_given && !are_several_nodes(texts)) return;
  const auto place = cluster::find_node_place(variables);
  if (!place || (!nodes_given && !place->nodes)) return;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) texts.emplace(name, options::Found{text, place->source});
  };
  if (place->nodes) add("nodes", std::to_string(*place->nodes));
  if (place->node_rank) add("node_rank", std::to_string(*place->node_rank));
  if (are_several_nodes(texts)) {
    add("main_address", place->main_address);
    if (place->main_port != 0) add("main_port", std::to_string(place->main_port));
  }
  add("devices", place->devices);
}

}  // namespace muster::cli
