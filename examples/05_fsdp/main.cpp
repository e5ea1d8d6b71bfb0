// A transformer learns a book, byte by byte; under "fsdp" no rank holds all of it. Leaves the loss and this rank's
// memory after every step in FOLDER/rank0.csv and so on.
//   fsdp TEXT FOLDER [STRATEGY [PRECISION [auto|wrap [STEPS [WIDTH]]]]]
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/base/format.h>
#include <muster/fabric.h>
#include <muster/parallel/wrap.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;

constexpr int64_t kBytes = 256, kContext = 64, kHeads = 4, kBlocks = 6, kEpochs = 3;

// The book in windows of kContext + 1 bytes: each byte is to be guessed from those before it.
class Book {
 public:
  explicit Book(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<uint8_t> text((std::istreambuf_iterator<char>(file)), {});
    if (text.size() <= kContext) throw std::runtime_error("there is no book at " + path);
    text_ = torch::tensor(text);
  }
  torch::Tensor get(int64_t index) const {
    const auto begin = index * kContext;
    return text_.slice(0, begin, begin + kContext + 1).to(torch::kLong);
  }
  int64_t size() const { return (text_.size(0) - 1) / kContext; }

 private:
  torch::Tensor text_;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : width(width) {}
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1);
    auto parts = qkv(norm1(x)).view({batch, length, 3, kHeads, width / kHeads}).permute({2, 0, 3, 1, 4});
    auto heard = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + out(heard.transpose(1, 2).reshape({batch, length, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }
  int64_t width;
  torch::nn::LayerNorm norm1{register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))};
  torch::nn::Linear qkv{register_module("qkv", torch::nn::Linear(width, 3 * width))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(width, width))};
  torch::nn::LayerNorm norm2{register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(width, 4 * width))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(4 * width, width))};
};
TORCH_MODULE(Block);

// The loss of guessing each next byte. Where nothing is wrapped, the repeated blocks become units by themselves.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl(int64_t width, bool wrapped) : width(width) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(wrapped ? muster::wrap(Block(width)) : Block(width));
  }
  torch::Tensor forward(torch::Tensor text) {
    auto given = text.slice(1, 0, kContext), wanted = text.slice(1, 1);
    auto x = bytes(given) + places(torch::arange(kContext, given.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return F::cross_entropy(head(norm(x)).flatten(0, 1), wanted.flatten());
  }
  int64_t width;
  torch::nn::Embedding bytes{register_module("bytes", torch::nn::Embedding(kBytes, width))};
  torch::nn::Embedding places{register_module("places", torch::nn::Embedding(kContext, width))};
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(width, kBytes))};
};
TORCH_MODULE(Reader);

// What this process holds in memory, in MiB.
double resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kibibytes = 0; word == "VmRSS:" && status >> kibibytes) return kibibytes / 1024;
  return 0;
}

void train(const std::vector<std::string>& given) {
  const auto option = [&](size_t i, const char* otherwise) {
    return i < given.size() ? given[i] : std::string(otherwise);
  };
  const std::filesystem::path folder = option(1, ".");
  const auto steps = std::stoll(option(5, "40"));
  muster::Fabric fabric({.precision = muster::Precision::parse(option(3, "32-true")),
                         .strategy = muster::Strategy::parse(option(2, "fsdp"))});
  fabric.launch();
  const double before = resident();
  torch::manual_seed(1);
  Reader net(std::stoll(option(6, "384")), option(4, "auto") == "wrap");
  auto [model, optimizer] = fabric.setup(net, torch::optim::AdamW(net->parameters(), 1e-3));
  auto batches = fabric.setup_dataloaders(muster::DataLoader(Book(option(0, "")), {.batch_size = 4, .shuffle = true}));
  fabric.print("{}", fabric.plan());

  std::filesystem::create_directories(folder);
  std::ofstream curve(folder / muster::formatted("rank{}.csv", fabric.global_rank()));
  curve << "step,loss,MiB\n";
  auto batch = batches.begin();
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    torch::Tensor mean = torch::zeros({});
    for (int64_t step = 0; step < steps; ++step, ++batch) {
      auto loss = model(*batch);
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      const auto shown = fabric.all_reduce(loss.detach().to(torch::kFloat), "mean");
      mean += shown / steps;
      curve << epoch * steps + step << ',' << shown.item<float>() << ',' << resident() - before << '\n';
    }
    fabric.print("epoch {}: loss {:.4f}", epoch, mean.item<float>());
  }
  fabric.save_model(model, folder);
}

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: fsdp TEXT FOLDER [STRATEGY [PRECISION [auto|wrap [STEPS [WIDTH]]]]]\n");
    return 2;
  }
  train({arguments + 1, arguments + count});
}
