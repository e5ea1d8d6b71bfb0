#include "comm/backend_object.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "base/listing.h"
#include "comm/object_file.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr const char* kEntry = "muster_backend_object";

std::string kind_of(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw ConfigError("MU562", formatted("the backend of a device in {} cannot be used: {}", path, why));
}

const BackendEntry& entry_of(const ObjectFile& opened) {
  const auto* object = static_cast<const BackendObject*>(::dlsym(opened.handle, kEntry));
  if (!object) refuse(opened.path, formatted("it does not define {}, see docs/howto/nccl.md", kEntry));
  if (std::strcmp(object->built_with, MUSTER_BACKEND_OBJECT_BUILT_WITH) != 0)
    refuse(opened.path, formatted("it was built with {}, and this program with {}; build both with the same",
                                  object->built_with, MUSTER_BACKEND_OBJECT_BUILT_WITH));
  if (!object->entry.make || object->entry.device == c10::DeviceType::CPU)
    refuse(opened.path, "its entry has no factory, or is not for a device");
  return object->entry;
}

std::string way_to_get(const std::string& name) {
  const std::string folders = formatted("put its folder into {}", kObjectFolders);
  if (name != "nccl") return folders;
  return "it is built with Muster where LibTorch has CUDA and the headers of CUDA and NCCL are found (make cuda, or "
         "the CUDA toolkit); or " +
         folders;
}

std::string absence(const std::string& name, const ObjectFile& opened) {
  return formatted("there is no {} (looked for {}): {}",
                   name.find('/') == std::string::npos ? "libmuster_" + name + ".so" : "such file",
                   joined(opened.looked_at), way_to_get(name));
}

FoundBackend from_object(const std::string& name, const ObjectFile& opened) {
  BackendEntry entry = entry_of(opened);
  entry.name = name;
  std::string note = "from " + opened.path;
  if (entry.note) note += "; " + entry.note();
  return {std::make_shared<const BackendEntry>(std::move(entry)), note};
}

}  // namespace

FoundBackend find_device_backend(const DeviceBackend& wanted, c10::DeviceType device) {
  if (const auto& own = wanted.own())
    return own->device == device ? FoundBackend{own, "of the program"} : FoundBackend{nullptr, "it is for another one"};
  const auto& name = wanted.name();
  if (name == "none") return {nullptr, "device_backend is none"};
  const bool is_free = name == "auto" || name.empty();
  if (is_free && device != c10::DeviceType::CUDA) return {nullptr, "no device_backend is given"};
  const std::string object = is_free ? "nccl" : name;
  const auto opened = open_object(object);
  if (!opened.problem.empty()) refuse(opened.path, opened.problem);
  if (is_free && !opened.handle) return {nullptr, absence("nccl", opened)};
  if (!opened.handle)
    throw ConfigError("MU558", formatted("device_backend is {}, but {}", name, absence(name, opened)));
  auto found = from_object(object, opened);
  if (found.entry->device != device)
    throw ConfigError("MU563", formatted("device_backend is {}, whose tensors are on {}, but this rank's are on {}: no "
                                         "device of that kind was found, or another one was chosen. Take "
                                         "device_backend auto or none, or a machine that has it",
                                         name, kind_of(found.entry->device), kind_of(device)));
  return found;
}

}  // namespace muster::comm
