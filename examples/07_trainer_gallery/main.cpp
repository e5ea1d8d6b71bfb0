// Programs that people train with Lightning, as commands of one program. Where they run, and with which strategy, is up
// to the launcher: muster run --devices 2 --strategy fsdp trainer_gallery boring
#include <cstdio>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "boring.h"
#include "gan.h"
#include "language_model.h"

int main(int count, char** values) {
  const std::vector<std::string> words(values + 1, values + count);
  const auto is = [&](size_t i, const char* word) { return i < words.size() && words[i] == word; };
  torch::manual_seed(1);
  if (is(0, "boring") && is(1, "wrapped")) train_boring_model<WrappedBoringModel>();
  else if (is(0, "boring")) train_boring_model<SlowBoringModel>();
  else if (is(0, "gan")) train_gan();
  else if (is(0, "language") && words.size() > 1) train_language_model(words[1], is(2, "wrapped"));
  else {
    std::fprintf(stderr, "usage: trainer_gallery boring [wrapped] | gan | language TEXT [wrapped]\n");
    return 2;
  }
}
