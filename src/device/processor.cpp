#include "device/processor.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace muster::device {

bool multiplies_bfloat16() {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
  return amx || (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1));
#elif defined(__aarch64__) && defined(__linux__)
  return getauxval(AT_HWCAP2) >> 14 & 1;
#else
  return true;
#endif
}

}  // namespace muster::device
