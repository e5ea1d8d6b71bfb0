#include "comm/object_file.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "muster/base/environment.h"
#include "muster/base/format.h"
#include "muster/comm/rendezvous.h"

namespace muster::comm {
namespace {

using Places = std::vector<std::filesystem::path>;

/// The folder of the file that contains this function: libmuster.so or the program.
std::filesystem::path own_folder() {
  Dl_info where{};
  std::error_code ignored;
  const auto place = reinterpret_cast<void*>(&own_folder);
  const bool is_library = ::dladdr(place, &where) != 0 && where.dli_fname && std::strchr(where.dli_fname, '/');
  return std::filesystem::canonical(is_library ? where.dli_fname : "/proc/self/exe", ignored).parent_path();
}

Places places_of(const std::string& name) {
  if (name.find('/') != std::string::npos) return {name};
  const auto file = "libmuster_" + name + ".so";
  Places places;
  for (const auto& folder : split_text(Environment::of_process().find(kObjectFolders).value_or(""), ':'))
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

/// The first of these files that is there, opened.
ObjectFile open_first_of(const Places& places, int symbols) {
  // The object may refer to LibTorch, which the program has. It is never closed, because what it made is still in use.
  ObjectFile object;
  for (const auto& place : places) {
    object.path = place.string();
    object.looked_at.push_back(object.path);
    object.handle = ::dlopen(object.path.c_str(), RTLD_NOW | RTLD_NODELETE | symbols);
    const char* why = object.handle ? "" : ::dlerror();
    object.problem = why ? why : "it cannot be opened";
    object.is_refused = !object.handle && is_there(place);
    if (object.handle || object.is_refused) return object;
  }
  return object;
}

}  // namespace

ObjectFile open_object(const std::string& name) { return open_first_of(places_of(name), RTLD_LOCAL); }

ObjectFile open_own_object(const char* file) { return open_first_of({own_folder() / file, file}, RTLD_GLOBAL); }

std::string place_of_object(const std::string& name) {
  for (const auto& place : places_of(name))
    if (is_there(place)) return place.string();
  return "";
}

std::string difference_of_builds(const char* built_with) {
  if (std::strcmp(built_with, MUSTER_BACKEND_OBJECT_BUILT_WITH) == 0) return "";
  return formatted("was built with {}, and this program with {}; build both with the same", built_with,
                   MUSTER_BACKEND_OBJECT_BUILT_WITH);
}

}  // namespace muster::comm
