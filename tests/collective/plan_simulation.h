#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/collective/plan.h"

// All ranks' plans of one call, run in one thread on plain memory: what links and a runner promise, at its worst. Pure.
namespace downpour::collective {

// A value that remembers how it came about.
struct Element {
  std::uint64_t sum = 0;    // wraps around: right whatever the order
  double value = 0;         // added up as computers do, so the order shows in the last bits
  std::uint64_t order = 0;  // an operation that minds which operand comes first, and how they are put in brackets
  int completed = 0;        // how often kReduceLast was applied
};
bool same_bits(const Element& a, const Element& b);
bool same(const std::vector<Element>& a, const std::vector<Element>& b);  // bits
Element random_element(std::uint64_t seed);  // values of both signs, some 1e24 times as large as others
std::vector<Element> random_elements(std::int64_t count, std::uint64_t seed);

// One rank's buffers, by Buffer. Scratch comes with garbage in it.
struct Memory {
  std::array<std::vector<Element>, 3> buffers;
  std::vector<Element>& of(Buffer buffer) { return buffers[static_cast<std::size_t>(buffer)]; }
  const std::vector<Element>& of(Buffer buffer) const { return buffers[static_cast<std::size_t>(buffer)]; }
};

// What the ranks have before a call of that shape, not kUneven: inputs and outputs at random.
std::vector<Memory> memories_for(const CallShape& shape, int world);
// The first rank and element of the outputs that is not what call.h promises; "" for none. Of a reduction `sum` must be
// right, kReduceLast applied once, and all bits the same on all ranks.
std::string difference(const CallShape& shape, const std::vector<Memory>& before, const std::vector<Memory>& after);

enum class Links {
  kBuffered,    // take a copy at once
  kRendezvous,  // a step waits until the other rank has taken what it sends
  kLate,        // let the step go on, but read the slice only when the other rank takes it
};
enum class Turns {
  kInTurn,    // one action each
  kRandom,    // whoever a fixed seed says
  kOneAhead,  // one rank whenever it can
  kOneBehind  // one rank only when no other can
};
struct Delivery {
  Links links = Links::kBuffered;
  Turns turns = Turns::kInTurn;
  int chosen = 0;  // kOneAhead, kOneBehind: which one; kRandom: the seed
};

struct Outcome {
  std::string failure;  // "" when all plans were done, every slice was taken, and none lay outside its buffer
  std::vector<std::int64_t> sent_elements;  // by rank, without what stays within it
  int rounds = 0;  // when the last rank is done, if a message takes one round and the rest nothing
};
Outcome simulate(const std::vector<Plan>& plans, std::vector<Memory>& memories, const Delivery& delivery);

}  // namespace downpour::collective
