#pragma once

#include <cstdint>
#include <string_view>

#include "csrc/collective/call.h"

namespace downpour::collective {

enum class Algorithm : std::uint8_t {
  kLinear = 1,         // the root with each rank in turn; everyone with everyone in turn
  kBinomialTree,       // log2(world) steps, halves at each
  kRecursiveDoubling,  // log2(world) exchanges of everything; the ranks beyond a power of two fold in first
  kRing,               // world - 1 (all-reduce: twice that) steps of 1/world each: as few bytes as there can be
  kPipelinedChain,     // broadcast: rank to rank in pieces, all of them at work at once
  kDissemination,      // log2(world) rounds, in each from twice as far: a barrier, or blocks that all get
};
std::string_view name(Algorithm algorithm);

// A pipelined chain's pieces are at most this long. In the hash as well.
inline constexpr std::int64_t kChainPieceBytes = 128 * 1024;

// What is used for an operation over links: the first row whose limits hold. One checked-in table and no choice at run
// time on which ranks could disagree; its hash is part of the handshake. bytes: of the shape's `count` elements; 0
// where slices differ.
Algorithm algorithm_for(Op op, int world, std::int64_t bytes);
std::uint64_t algorithm_table_hash();

}  // namespace downpour::collective
