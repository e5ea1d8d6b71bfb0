#include "comm/object_file.h"

#include <dlfcn.h>

#include <cstring>
#include <sstream>

#include "comm/backend_object.h"
#include "muster/base/environment.h"

namespace muster::comm {
namespace {

std::vector<std::filesystem::path> places_of(const std::string& name) {
  if (name.find('/') != std::string::npos) return {name};
  const auto file = "libmuster_" + name + ".so";
  std::vector<std::filesystem::path> places;
  std::istringstream folders(Environment::of_process().find(kObjectFolders).value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty()) places.push_back(std::filesystem::path(folder) / file);
  const auto own = own_folder();
  places.push_back(own.parent_path() / "lib" / file);
  places.push_back(own / file);
  places.emplace_back(file);
  return places;
}

bool is_there(const std::filesystem::path& place) {
  std::error_code ignored;
  return place.has_parent_path() && std::filesystem::exists(place, ignored);
}

}  // namespace

std::filesystem::path own_folder() {
  Dl_info where{};
  std::error_code ignored;
  const auto place = reinterpret_cast<void*>(&own_folder);
  const bool is_library = ::dladdr(place, &where) != 0 && where.dli_fname && std::strchr(where.dli_fname, '/');
  return std::filesystem::canonical(is_library ? where.dli_fname : "/proc/self/exe", ignored).parent_path();
}

std::string place_of_object(const std::string& name) {
  for (const auto& place : places_of(name))
    if (is_there(place)) return place.string();
  return "";
}

ObjectFile open_object(const std::string& name) {
  ObjectFile object;
  for (const auto& place : places_of(name)) {
    object.path = place.string();
    object.looked_at.push_back(object.path);
    // The object may refer to LibTorch, which the program has; nothing refers to the object. It is never closed,
    // because what it made is still in use.
    object.handle = ::dlopen(object.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (object.handle) return object;
    const char* why = ::dlerror();
    if (!is_there(place)) continue;
    object.problem = why ? why : "it cannot be opened";
    return object;
  }
  return object;
}

}  // namespace muster::comm
