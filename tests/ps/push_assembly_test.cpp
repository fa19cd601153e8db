#include "csrc/ps/push_assembly.h"

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace downpour::ps {
namespace {

// Slices of 16 floats, 5 floats (and 44 bytes of nothing), 4 doubles.
struct Bench {
  static Schema schema() {
    return {{{"a", {16}, Dtype::kFloat32, 0}, {"b", {5}, Dtype::kFloat32, 0}, {"c", {4}, Dtype::kFloat64, 0}},
            1,
            RuleKind::kSgd,
            0};
  }
  void add(std::size_t begin, std::size_t end) { assembly.add(begin, end - begin); }

  ShardLayout layout = partition(schema(), 1)[0];
  PushAssembly assembly{layout};
};

TEST(PushAssembly, TakesWholePushesInAnyOrderOfSlices) {
  Bench bench;
  bench.assembly.begin(0, 0);
  bench.add(128, 160);
  bench.add(64, 84);
  bench.add(0, 32);
  bench.add(32, 64);
  bench.assembly.finish({true, true, true});
  EXPECT_FALSE(bench.assembly.is_open());
}

TEST(PushAssembly, ForgetsThePushBefore) {
  Bench bench;
  bench.assembly.begin(0, 0);
  bench.add(0, 64);
  bench.assembly.finish({true, false, false});
  bench.assembly.begin(1, 0);
  bench.add(64, 84);
  bench.assembly.finish({false, true, false});
}

TEST(PushAssembly, WhatLiesBetweenSlicesMayTravelAlong) {
  Bench bench;
  bench.assembly.begin(0, 0);
  bench.add(0, 160);
  bench.assembly.finish({true, true, true});
}

TEST(PushAssembly, RefusesBytesTwiceGapsHalvesAndNothing) {
  const auto refused = [](std::size_t begin, std::size_t end) {
    Bench bench;
    bench.assembly.begin(0, 0);
    bench.add(0, 16);
    EXPECT_THROW(bench.add(begin, end), ProtocolError) << begin << " to " << end;
  };
  refused(0, 16);     // again
  refused(12, 64);    // in part
  refused(20, 64);    // a gap
  refused(16, 18);    // half an element
  refused(88, 120);   // between two slices
  refused(132, 160);  // the second double's half
}

TEST(PushAssembly, RefusesWhatIsMissingAndWhatIsAbsent) {
  Bench bench;
  bench.assembly.begin(0, 0);
  bench.add(0, 64);
  EXPECT_THROW(bench.assembly.finish({true, true, false}), ProtocolError);
  EXPECT_THROW(bench.assembly.finish({false, false, false}), ProtocolError);
  EXPECT_THROW(bench.assembly.finish({true, false}), ProtocolError);
  bench.assembly.finish({true, false, false});
}

TEST(PushAssembly, RefusesAnotherPushInTheMidst) {
  Bench bench;
  bench.assembly.begin(4, 1);
  bench.assembly.check_same(4, 1);
  EXPECT_THROW(bench.assembly.check_same(5, 1), ProtocolError);
  EXPECT_THROW(bench.assembly.check_same(4, 2), ProtocolError);
}

}  // namespace
}  // namespace downpour::ps
