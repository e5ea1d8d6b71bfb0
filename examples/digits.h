// The digits of data/digits: a torch::data dataset of 8x8 images, split by line into training and held-out parts.
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

class Digits : public torch::data::datasets::Dataset<Digits> {
 public:
  enum class Part { train, test };  // every fifth image is held out

  explicit Digits(Part part, const std::string& file = MUSTER_DIGITS) {
    std::ifstream lines(file);
    if (!lines) throw std::runtime_error("cannot open the digits at " + file);
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    std::string line;
    for (int64_t row = 0; std::getline(lines, line); ++row)
      if ((row % 5 == 4) == (part == Part::test)) read(line, pixels, labels);
    images_ = torch::tensor(pixels).view({-1, 1, 8, 8}).div_(16);
    labels_ = torch::tensor(labels);
  }

  torch::data::Example<> get(size_t index) override {
    return {images_[static_cast<int64_t>(index)], labels_[static_cast<int64_t>(index)]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(labels_.size(0)); }

 private:
  static void read(const std::string& line, std::vector<float>& pixels, std::vector<int64_t>& labels) {
    std::vector<float> numbers;
    for (size_t at = 0; at < line.size();
         at = line.find(',', at) == std::string::npos ? line.size() : line.find(',', at) + 1)
      numbers.push_back(std::stof(line.substr(at)));
    if (numbers.size() != 65)
      throw std::runtime_error("a line of the digits has " + std::to_string(numbers.size()) + " numbers, not 65");
    pixels.insert(pixels.end(), numbers.begin(), numbers.end() - 1);
    labels.push_back(static_cast<int64_t>(numbers.back()));
  }

  torch::Tensor images_, labels_;
};

struct DigitNetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return out(torch::relu(hidden(x.flatten(1))));
  }
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)))};
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(64 * 4 * 4, 128))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(128, 10))};
};
TORCH_MODULE(DigitNet);
