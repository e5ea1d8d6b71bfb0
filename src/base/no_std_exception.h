#pragma once  // for other rooms

namespace muster {

/// In messages, for what was thrown and has no text.
inline constexpr const char* kNoStdException = "an exception that is no std::exception";

}  // namespace muster
