#include "curl_library.h"

#include <dlfcn.h>

#include <string>

#include "base/shown.h"
#include "muster/base/error.h"

namespace muster::track {
namespace {

[[noreturn]] void refuse_curl(const char* reason) {
  throw ConfigError("MU532", "the tracker 'mlflow' needs the library libcurl, which cannot be loaded (" +
                                 shown(reason ? reason : "no reason given") +
                                 "); install it (Debian: libcurl4), or log with 'jsonl' or 'csv'");
}

template <class Function>
void find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) refuse_curl(::dlerror());
}

constexpr const char* kCurlNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

}  // namespace

// Loaded at run time: linking it would bring two dozen libraries into every rank, and few ranks use it.
CurlLibrary load_curl(std::span<const char* const> names) {
  void* library = nullptr;
  for (const auto* name : names)
    if (!library) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse_curl(::dlerror());
  CurlLibrary of{};
  find_function(library, "curl_global_init", of.global_init);
  find_function(library, "curl_easy_cleanup", of.easy_cleanup);
  find_function(library, "curl_easy_getinfo", of.easy_getinfo);
  find_function(library, "curl_easy_init", of.easy_init);
  find_function(library, "curl_easy_reset", of.easy_reset);
  find_function(library, "curl_easy_setopt", of.easy_setopt);
  find_function(library, "curl_easy_strerror", of.easy_strerror);
  find_function(library, "curl_multi_add_handle", of.multi_add_handle);
  find_function(library, "curl_multi_cleanup", of.multi_cleanup);
  find_function(library, "curl_multi_info_read", of.multi_info_read);
  find_function(library, "curl_multi_init", of.multi_init);
  find_function(library, "curl_multi_perform", of.multi_perform);
  find_function(library, "curl_multi_poll", of.multi_poll);
  find_function(library, "curl_multi_remove_handle", of.multi_remove_handle);
  find_function(library, "curl_slist_append", of.slist_append);
  find_function(library, "curl_slist_free_all", of.slist_free_all);
  return of;
}

const CurlLibrary& curl() {
  static const auto library = [] {
    const auto loaded = load_curl(kCurlNames);
    if (loaded.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) refuse_curl("it cannot be initialised");
    return loaded;
  }();
  return library;
}

}  // namespace muster::track
