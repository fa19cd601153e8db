// A tour of the process group, which checks itself: downpour run --workers 3 -- build/bin/collectives
#include <torch/torch.h>

#include <iostream>
#include <stdexcept>
#include <string>

#include "downpour/downpour.h"

namespace {

void expect(bool right, const std::string& what) {
  if (!right) {
    throw std::runtime_error("wrong result of " + what);
  }
}

// Small calls: a tensor list in, a Work out, wait() before the values are looked at.
void reduce_and_broadcast(c10d::ProcessGroup& group) {
  const int rank = group.getRank(), world = group.getSize();
  std::vector<torch::Tensor> tensors{torch::full({4}, rank + 1.0)};
  group.allreduce(tensors)->wait();
  expect(tensors[0].eq(world * (world + 1) / 2.0).all().item<bool>(), "allreduce");

  std::vector<torch::Tensor> values{torch::full({3}, static_cast<double>(rank))};
  c10d::BroadcastOptions from_last;
  from_last.rootRank = world - 1;
  group.broadcast(values, from_last)->wait();
  expect(values[0].eq(world - 1).all().item<bool>(), "broadcast");
}

void gather_and_exchange(c10d::ProcessGroup& group) {
  const int rank = group.getRank(), world = group.getSize();
  std::vector<torch::Tensor> inputs{torch::full({2}, static_cast<double>(rank))};
  std::vector<std::vector<torch::Tensor>> outputs(1);
  for (int other = 0; other < world; ++other) {
    outputs[0].push_back(torch::zeros({2}));
  }
  group.allgather(outputs, inputs)->wait();
  std::vector<torch::Tensor> sent, received;
  for (int other = 0; other < world; ++other) {
    expect(outputs[0][static_cast<std::size_t>(other)].eq(other).all().item<bool>(), "allgather");
    sent.push_back(torch::full({1}, 100.0 * rank + other));
    received.push_back(torch::zeros({1}));
  }
  group.alltoall(received, sent)->wait();
  for (int other = 0; other < world; ++other) {
    expect(received[static_cast<std::size_t>(other)].item<double>() == 100.0 * other + rank, "alltoall");
  }
}

// Works go on in the background, in the order in which they were begun; messages between two ranks go beside them.
void overlap(c10d::ProcessGroup& group) {
  const int rank = group.getRank(), world = group.getSize();
  std::vector<torch::Tensor> large{torch::ones({1'000'000})};
  const auto reducing = group.allreduce(large);
  if (world > 1) {
    std::vector<torch::Tensor> mine{torch::full({8}, static_cast<double>(rank))}, theirs{torch::zeros({8})};
    const auto sending = group.send(mine, (rank + 1) % world, 0);
    group.recv(theirs, (rank + world - 1) % world, 0)->wait();
    sending->wait();
    expect(theirs[0].eq((rank + world - 1) % world).all().item<bool>(), "send and recv");
  }
  reducing->wait();
  expect(large[0].eq(world).all().item<bool>(), "a large allreduce");
}

}  // namespace

int main() {
  const auto group = downpour::init_process_group();
  reduce_and_broadcast(*group);
  gather_and_exchange(*group);
  overlap(*group);
  group->barrier()->wait();
  if (group->getRank() == 0) {
    std::cout << "collectives: all as expected on " << group->getSize() << " ranks\n";
  }
  downpour::destroy_process_group(group);
}
