#pragma once

#include <curl/curl.h>

#include <span>

namespace muster::track {

/// The functions of libcurl that Muster calls.
struct CurlLibrary {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_multi_add_handle) multi_add_handle;
  decltype(&curl_multi_cleanup) multi_cleanup;
  decltype(&curl_multi_info_read) multi_info_read;
  decltype(&curl_multi_init) multi_init;
  decltype(&curl_multi_perform) multi_perform;
  decltype(&curl_multi_poll) multi_poll;
  decltype(&curl_multi_remove_handle) multi_remove_handle;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
};

/// Loads the first of these libraries that exists, for the lifetime of the process.
/// Throws: ConfigError (MU532) if none exists, or the first is older than 7.66.
CurlLibrary load_curl(std::span<const char* const> names);
/// The system's libcurl, loaded and initialised by the first call. Throws: as load_curl().
const CurlLibrary& curl();

}  // namespace muster::track
