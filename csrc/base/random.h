#pragma once

#include <cstdint>
#include <vector>

namespace downpour {

// SplitMix64 (Steele, Lea, Flood 2014): small, the same on every machine, seeded by the caller. Threads: one.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound), without modulo bias (Lemire 2019).
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = -bound % bound;
      while (static_cast<std::uint64_t>(product) < threshold) {
        product = static_cast<Wide>(next()) * bound;
      }
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

 private:
  std::uint64_t state_;
};

// From the operating system: for job ids and nonces, never for anything that must repeat.
std::uint64_t system_random();

// 0 .. size-1 in an order that the seed decides (Fisher-Yates). Shapes: size >= 0.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed);

}  // namespace downpour
