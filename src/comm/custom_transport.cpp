#include "comm/custom_transport.h"

#include <dlfcn.h>

#include <cctype>

#include "comm/group.h"
#include "comm/handshake.h"
#include "comm/object_file.h"
#include "comm/pairwise.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

[[noreturn]] void refuse_transport(const std::string& backend, const std::string& why) {
  throw ConfigError("MU577", formatted("the transport of the backend {} cannot be used: {}", backend, why));
}

bool is_part_of_a_symbol(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](unsigned char c) { return c == '_' || (c < 128 && std::isalnum(c) != 0); });
}

TransportFactory factory_of(const std::string& name, const void* symbol, const std::string& file) {
  const auto& object = *static_cast<const TransportObject*>(symbol);
  if (const auto difference = difference_of_builds(object.built_with); !difference.empty())
    refuse_transport(name, formatted("{} {}", file, difference));
  if (!object.make) refuse_transport(name, formatted("{} has no factory for it; set TransportObject::make", file));
  return object.make;
}

/// Pairwise over a custom transport. Transports of its subgroups are checked as the transport itself was.
class CustomPairwise final : public Pairwise {
 public:
  CustomPairwise(CustomTransportSetup setup, std::unique_ptr<Transport> transport)
      : Pairwise(std::move(transport)), setup_(std::move(setup)) {}
  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    return make_over_custom(setup_, name, rank_index(ranks, rank()), static_cast<int>(ranks.size()),
                            [&] { return transport().split(ranks, name); });
  }

 private:
  const CustomTransportSetup setup_;
};

}  // namespace

FoundTransport find_transport(const std::string& name) {
  if (!is_part_of_a_symbol(name)) return {};
  const std::string symbol = "muster_transport_" + name;
  if (const void* object = ::dlsym(RTLD_DEFAULT, symbol.c_str()))
    return {factory_of(name, object, "the program"), "of the program"};
  const auto opened = open_object(name);
  if (opened.is_refused) refuse_transport(name, formatted("{} cannot be opened: {}", opened.path, opened.problem));
  if (!opened.handle) return {};
  const void* object = ::dlsym(opened.handle, symbol.c_str());
  if (!object)
    refuse_transport(name,
                     formatted("{} does not define {}, see docs/howto/transports.md; what it has may be a backend of a "
                               "device, for the option device_backend",
                               opened.path, symbol));
  return {factory_of(name, object, opened.path), "from " + opened.path};
}

std::unique_ptr<Collectives> make_over_custom(const CustomTransportSetup& setup, const std::string& group, int rank,
                                              int size, const MakeTransport& make) {
  return connect_or_throw(setup.backend, group, rank, [&]() -> std::unique_ptr<Collectives> {
    auto transport = make();
    if (!transport) refuse_transport(setup.backend, formatted("none was made for group {}", group));
    if (transport->rank() != rank || transport->size() != size)
      refuse_transport(setup.backend,
                       formatted("what was made for rank {} of {} in group {} says that it is rank {} of {}", rank,
                                 size, group, transport->rank(), transport->size()));
    shake_hands(*transport, setup.secret, group, setup.connect_timeout);
    return std::make_unique<CustomPairwise>(setup, std::move(transport));
  });
}

Communicator connect(std::unique_ptr<Transport> transport, const GroupOptions& options) {
  check_timeouts(options);
  if (!transport) throw ConfigError("MU577", "connect() was given no transport; give it one");
  if (options.device_backend)
    throw ConfigError("MU577",
                      "connect() was given a transport and a device_backend, which needs the store of a "
                      "rendezvous; let TransportObject name the transport, and give connect() the cluster");
  const int rank = transport->rank(), size = transport->size();
  if (rank < 0 || rank >= size)
    throw ConfigError("MU577",
                      formatted("connect() was given a transport that says that it is rank {} of {}", rank, size));
  if (size == 1) return Communicator();
  GroupIdentity identity{.backend = options.backend == "auto" ? "custom" : options.backend, .timeout = options.timeout};
  const auto secret = cluster::read_secret(Environment::of_process());
  auto collectives = make_over_custom({identity.backend, options.rendezvous_timeout, secret}, identity.name, rank, size,
                                      [&] { return std::move(transport); });
  return Communicator(std::make_shared<Group>(std::move(identity), std::move(collectives)));
}

}  // namespace muster::comm
