#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/ps/client.h"

// What a worker does whose whole model is one float parameter, without LibTorch.
namespace downpour::ps {

inline void initialise(Client& client, const std::vector<float>& values) {
  client.initialise([&values](std::uint32_t) { return values.data(); }, std::vector<double>(1, 0.0));
}

// The servers add the gradient to the values: plain SGD, with a learning rate of -1.
inline void push(Client& client, const std::vector<float>& gradient, std::uint64_t lease = 0) {
  const Hyper hyper{.lr = -1};
  client.begin_push(lease);
  client.add_gradient(0, gradient.data());
  client.end_push({&hyper, 1});
}

inline void pull(Client& client, std::vector<float>& values) {
  client.begin_pull();
  client.finish_pull([&values](const Slice&, std::int64_t begin, std::int64_t count, const void* source) {
    std::memcpy(values.data() + begin, source, static_cast<std::size_t>(count) * sizeof(float));
  });
}

}  // namespace downpour::ps
