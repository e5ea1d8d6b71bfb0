#pragma once  // for other rooms

namespace muster {

/// Message text for a thrown object that is not a std::exception.
inline constexpr const char* kNoStdException = "an exception that is no std::exception";

}  // namespace muster
