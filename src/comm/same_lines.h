#pragma once  // for other rooms

#include <string>
#include <string_view>
#include <vector>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// The beginning and the end of the error message.
struct DisagreementText {
  std::string_view remedy = "build the same model on every rank, whatever its rank";
  std::string_view what = "ranks have built different models";
};

/// Throws: ConfigError (MU150) on every rank if ranks pass different lines. The message names the first line that
/// differs and both sides. Collective: one exchange of bytes.
void require_same_lines(const Communicator& group, const std::vector<std::string>& lines,
                        const DisagreementText& text = {});

}  // namespace muster::comm
