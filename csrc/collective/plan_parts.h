#pragma once

#include <cstdint>

#include "csrc/collective/plan.h"

// What the ways of plan_trees.cpp, plan_rings.cpp and plan.cpp write on. Private to them.
namespace downpour::collective {

// One of `parts` nearly equal parts of [0, count): the first ones are longer by one where it does not divide.
Slice part_of(Buffer buffer, std::int64_t count, std::int64_t parts, std::int64_t index);

// One rank's plan while it is written. Ranks and indices count around the group: -1 is the last. What has no elements
// is left out, on both sides alike, since both know the counts.
struct Draft {
  const CallShape& shape;
  const UnevenCounts& uneven;
  int rank;
  int world;
  Plan plan = {};

  int around(int number) const { return ((number % world) + world) % world; }
  int peer(int distance) const { return around(rank + distance); }
  Arrival reduce(bool last) const { return last ? Arrival::kReduceLast : Arrival::kReduce; }

  Slice whole(Buffer buffer) const { return {buffer, 0, shape.count}; }
  // `count` elements of a buffer that has that many for each rank.
  Slice block(Buffer buffer, int index) const { return {buffer, around(index) * shape.count, shape.count}; }
  // One of `world` parts of a buffer of `count` elements.
  Slice chunk(Buffer buffer, int index) const { return part_of(buffer, shape.count, world, around(index)); }

  void copy(const Slice& from, const Slice& to);
  void exchange(int to, const Slice& sent, int from, const Slice& received, Arrival arrival);
  void send(int to, const Slice& sent) { exchange(to, sent, Step::kNobody, {}, Arrival::kCopy); }
  void receive(int from, const Slice& received, Arrival arrival) {
    exchange(Step::kNobody, {}, from, received, arrival);
  }
  void apply(const Slice& from, const Slice& to, Arrival arrival) { exchange(rank, from, rank, to, arrival); }
};

void broadcast_by_tree(Draft& draft);
void reduce_by_tree(Draft& draft);
void all_reduce_by_doubling(Draft& draft);
void all_gather_by_dissemination(Draft& draft);
void barrier_by_dissemination(Draft& draft);

void broadcast_by_chain(Draft& draft);
void all_reduce_by_ring(Draft& draft);
void reduce_by_ring(Draft& draft);
void all_gather_by_ring(Draft& draft);
void reduce_scatter_by_ring(Draft& draft);

}  // namespace downpour::collective
