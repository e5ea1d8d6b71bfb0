/// As a BackendObject begins.
extern "C" const char* const muster_backend_object[] = {"Muster 0.0, LibTorch 1.13.0", nullptr};
/// As a TransportObject begins.
extern "C" const char* const muster_transport_stale[] = {"Muster 0.0, LibTorch 1.13.0", nullptr};
