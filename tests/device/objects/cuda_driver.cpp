// A driver's library as CUDA's: it has two devices.
#include <cstdio>

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index + 40;
  return index < 2 ? 0 : 101;
}

int cuDeviceGetPCIBusId(char* address, int size, int device) {
  std::snprintf(address, static_cast<unsigned>(size), "0000:%d:00.0", device);
  return 0;
}

}  // extern "C"
