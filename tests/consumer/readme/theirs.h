// What the program of README.md calls the reader's own. It stands in front of that program, which includes <downpour/downpour.h>.
#include <torch/torch.h>

struct MyModelImpl : torch::nn::Module {
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(8, 3))};
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
};
TORCH_MODULE(MyModel);

struct MyData {
  torch::Tensor x, y;
};
inline MyData load_my_data() { return {torch::randn({200, 8}), torch::randint(3, {200})}; }
