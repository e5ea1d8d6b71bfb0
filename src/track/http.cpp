#include "track/http.h"

#ifdef MUSTER_HAS_CURL
#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/text.h"
#include "track/curl_library.h"
#endif

#include "muster/base/error.h"

namespace muster::track {

#ifdef MUSTER_HAS_CURL

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

struct HttpConnection::Handles {
  std::unique_ptr<CURLM, decltype(&curl_multi_cleanup)> multi{curl().multi_init(), curl().multi_cleanup};
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy{curl().easy_init(), curl().easy_cleanup};
  std::array<char, CURL_ERROR_SIZE> words{};
};

namespace {

constexpr std::size_t kLargestReply = std::size_t{16} << 20;  // limit on a reply in bytes
constexpr long kSecondsWithoutProgress = 30;                  // time-out of a request with a file
constexpr int kLookForStopMs = 50;                            // time between two checks of the stop flag

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::size_t keep_reply(char* data, std::size_t size, std::size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + size * count > kLargestReply) return 0;
  text.append(data, size * count);
  return size * count;
}

std::size_t read_file(char* to, std::size_t size, std::size_t count, void* file) {
  return std::fread(to, size, count, static_cast<std::FILE*>(file));
}

void set_body(CURL* easy, const HttpRequest& request, std::chrono::milliseconds timeout) {
  const auto& set = curl().easy_setopt;
  if (!request.body.empty()) {
    set(easy, CURLOPT_POSTFIELDS, request.body.c_str());
    set(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  set(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  set(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout.count()));
}

void set_file(CURL* easy, const HttpRequest& request, std::FILE* file) {
  const auto& set = curl().easy_setopt;
  std::error_code ignored;
  set(easy, CURLOPT_UPLOAD, 1L);
  set(easy, CURLOPT_READFUNCTION, read_file);
  set(easy, CURLOPT_READDATA, file);
  set(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(std::filesystem::file_size(request.file, ignored)));
  set(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(easy, CURLOPT_LOW_SPEED_TIME, kSecondsWithoutProgress);
}

void set_access(CURL* easy, const HttpServer& server) {
  const auto& set = curl().easy_setopt;
  if (!server.username.empty() || !server.password.empty()) {
    set(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    set(easy, CURLOPT_USERNAME, server.username.c_str());
    set(easy, CURLOPT_PASSWORD, server.password.c_str());
  } else if (!server.token.empty()) {
    set(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(easy, CURLOPT_XOAUTH2_BEARER, server.token.c_str());
  }
  if (server.insecure_tls) {
    set(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    set(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  if (!server.server_cert.empty()) set(easy, CURLOPT_CAINFO, server.server_cert.c_str());
  if (!server.client_cert.empty()) set(easy, CURLOPT_SSLCERT, server.client_cert.c_str());
}

/// Runs the transfer to its end, or until `stop` is set.
CURLcode perform(CURLM* multi, CURL* easy, const std::atomic<bool>& stop) {
  const auto& library = curl();
  library.multi_add_handle(multi, easy);
  for (int running = 1; running > 0 && !stop;) {
    if (library.multi_perform(multi, &running) != CURLM_OK) break;
    if (running > 0) library.multi_poll(multi, nullptr, 0, kLookForStopMs, nullptr);
  }
  auto code = CURLE_ABORTED_BY_CALLBACK;
  int left = 0;
  while (const auto* message = library.multi_info_read(multi, &left))
    if (message->msg == CURLMSG_DONE) code = message->data.result;
  library.multi_remove_handle(multi, easy);
  return code;
}

}  // namespace

HttpConnection::HttpConnection(HttpServer server, std::chrono::milliseconds timeout, const std::atomic<bool>* stop)
    : server_(std::move(server)), timeout_(timeout), stop_(stop), handles_(std::make_unique<Handles>()) {}

HttpReply HttpConnection::send(const HttpRequest& request) {
  auto* easy = handles_->easy.get();
  if (!easy || !handles_->multi) return {.failure = "libcurl has no memory"};
  std::unique_ptr<std::FILE, CloseFile> file(request.file.empty() ? nullptr : std::fopen(request.file.c_str(), "rbe"));
  if (!request.file.empty() && !file) return {.failure = std::generic_category().message(errno)};
  HttpReply reply;
  const auto& library = curl();
  // Without this header, waiting for "100 Continue" costs a second if the server never sends it.
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(library.slist_append(nullptr, "Expect:"),
                                                                            library.slist_free_all);
  if (headers)
    library.slist_append(headers.get(),
                         file ? "Content-Type: application/octet-stream" : "Content-Type: application/json");
  const auto& set = library.easy_setopt;
  library.easy_reset(easy);
  set_access(easy, server_);
  handles_->words.fill('\0');
  set(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(timeout_.count()));
  set(easy, CURLOPT_ERRORBUFFER, handles_->words.data());
  // On a reused connection, libcurl would resend a request by itself.
  const long is_alone = request.method == "POST" ? 1 : 0;
  set(easy, CURLOPT_FORBID_REUSE, is_alone);
  set(easy, CURLOPT_FRESH_CONNECT, is_alone);
  set(easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  set(easy, CURLOPT_QUICK_EXIT, 1L);  // do not wait for a name server at the end
#endif
  set(easy, CURLOPT_URL, (server_.uri + request.path).c_str());
  set(easy, CURLOPT_USERAGENT, "muster");
  set(easy, CURLOPT_WRITEDATA, &reply.body);
  set(easy, CURLOPT_WRITEFUNCTION, keep_reply);
  if (file) set_file(easy, request, file.get());
  else set_body(easy, request, timeout_);
  set(easy, CURLOPT_HTTPHEADER, headers.get());
  const auto code = perform(handles_->multi.get(), easy, *stop_);
  if (code == CURLE_OK) library.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &reply.status);
  else reply.failure = handles_->words[0] ? handles_->words.data() : library.easy_strerror(code);
  return reply;
}

#else

struct HttpConnection::Handles {};

HttpConnection::HttpConnection(HttpServer, std::chrono::milliseconds timeout, const std::atomic<bool>* stop)
    : timeout_(timeout), stop_(stop) {
  throw ConfigError("MU532",
                    "the tracker 'mlflow' needs libcurl, and this Muster was built without its header; install it "
                    "(Debian: libcurl4-openssl-dev) and build Muster again, or log with 'jsonl' or 'csv'");
}

HttpReply HttpConnection::send(const HttpRequest&) { return {}; }

#endif

HttpConnection::HttpConnection(HttpConnection&&) noexcept = default;

HttpConnection::~HttpConnection() = default;

}  // namespace muster::track
