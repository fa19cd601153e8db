#include "csrc/ps/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "csrc/base/random.h"

namespace downpour::ps {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Schema schema_of(const std::vector<std::int64_t>& sizes, Dtype dtype = Dtype::kFloat32) {
  Schema schema;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    schema.parameters.push_back({concat("p", i), {sizes[i]}, dtype, 0});
  }
  return schema;
}

std::int64_t element_bytes(const ShardLayout& layout) {
  std::int64_t bytes = 0;
  for (const Slice& slice : layout.slices) {
    bytes += slice.size_bytes();
  }
  return bytes;
}

// The slices, one shard after another, are the parameters, one after another: no element left out, none twice.
void expect_every_element_once(const Schema& schema, const std::vector<ShardLayout>& layouts) {
  std::size_t parameter = 0;
  std::int64_t next = 0;
  const auto skip_finished = [&] {
    while (parameter < schema.parameters.size() && next == schema.parameters[parameter].numel()) {
      ++parameter;
      next = 0;
    }
  };
  for (const ShardLayout& layout : layouts) {
    for (const Slice& slice : layout.slices) {
      skip_finished();
      ASSERT_LT(parameter, schema.parameters.size());
      ASSERT_EQ(slice.parameter, parameter);
      ASSERT_EQ(slice.begin, next);
      ASSERT_GT(slice.count, 0);
      ASSERT_EQ(slice.dtype, schema.parameters[parameter].dtype);
      ASSERT_EQ(slice.group, schema.parameters[parameter].group);
      next += slice.count;
      ASSERT_LE(next, schema.parameters[parameter].numel());
    }
  }
  skip_finished();
  EXPECT_EQ(parameter, schema.parameters.size());
}

void expect_well_placed(const Schema& schema, const ShardLayout& layout) {
  std::int64_t end = 0, elements = 0;
  for (const Slice& slice : layout.slices) {
    EXPECT_EQ(slice.offset_bytes, (end + 63) / 64 * 64);
    EXPECT_EQ(slice.begin % 16, 0);
    EXPECT_TRUE(slice.count % 16 == 0 || slice.begin + slice.count == schema.parameters[slice.parameter].numel());
    end = slice.offset_bytes + slice.size_bytes();
    elements += slice.count;
  }
  EXPECT_EQ(layout.buffer_bytes, (end + 63) / 64 * 64);
  EXPECT_EQ(layout.elements, elements);
}

// The largest shard holds at most 5 % + 16 elements more bytes than the smallest; none is empty when there is enough.
void expect_balanced(const Schema& schema, const std::vector<ShardLayout>& layouts) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0, elements = 0, largest_element = 4;
  for (const ShardLayout& layout : layouts) {
    least = std::min(least, element_bytes(layout));
    most = std::max(most, element_bytes(layout));
    elements += layout.elements;
  }
  for (const ParameterSpec& parameter : schema.parameters) {
    largest_element = std::max(largest_element, size_bytes(parameter.dtype));
  }
  EXPECT_LE(most, least + least / 20 + 16 * largest_element);
  if (elements >= 16 * static_cast<std::int64_t>(layouts.size())) {
    EXPECT_GT(least, 0);
  }
}

void expect_good(const Schema& schema, int shard_count) {
  const std::vector<ShardLayout> layouts = partition(schema, shard_count);
  ASSERT_EQ(layouts.size(), static_cast<std::size_t>(shard_count));
  expect_every_element_once(schema, layouts);
  for (const ShardLayout& layout : layouts) {
    expect_well_placed(schema, layout);
  }
  expect_balanced(schema, layouts);
}

Schema random_schema(Random& random) {
  Schema schema;
  schema.groups = 3;
  const std::uint64_t kinds = random.below(3);
  for (std::uint64_t i = random.below(40); i > 0; --i) {
    const std::uint64_t size = random.below(std::uint64_t{1} << random.below(16));
    const Dtype dtype = kinds == 0 || (kinds == 1 && random.below(2) == 0) ? Dtype::kFloat32 : Dtype::kFloat64;
    schema.parameters.push_back(
        {concat("p", i), {static_cast<std::int64_t>(size)}, dtype, static_cast<std::uint32_t>(random.below(3))});
  }
  return schema;
}

TEST(Partition, every_element_once_aligned_and_balanced_for_random_models) {
  Random random(2012);
  for (int round = 0; round < 2000; ++round) {
    const Schema schema = random_schema(random);
    const int shard_count = static_cast<int>(1 + random.below(std::uint64_t{1} << random.below(8)));
    SCOPED_TRACE(concat("round ", round, ", ", schema.parameters.size(), " parameters, ", shard_count, " shards"));
    expect_good(schema, shard_count);
    if (HasFailure()) {
      return;
    }
  }
}

TEST(Partition, one_tensor_is_split_evenly) {
  for (const int shard_count : {1, 2, 3, 7, 64}) {
    const auto layouts = partition(schema_of({1'000'000}), shard_count);
    for (const ShardLayout& layout : layouts) {
      EXPECT_NEAR(static_cast<double>(layout.elements), 1e6 / shard_count, 16);
    }
  }
}

// The sizes that ruined a well-known system: 93.7, 15.5, 4.1 and 0.7 MB on four servers.
TEST(Partition, uneven_parameters_are_balanced) {
  expect_good(schema_of({23'425'000, 3'875'000, 1'025'000, 175'000}), 4);
}

// Few places to cut, and none where an even cut would be.
TEST(Partition, cut_points_that_pull_apart_are_balanced_together) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 50; ++i) {
    sizes.push_back(i % 2 == 0 ? 92 : 108);
  }
  expect_good(schema_of(sizes), 50);
}

TEST(Partition, more_shards_than_elements_leaves_empty_ones) {
  const Schema schema = schema_of({1, 0, 2});
  expect_good(schema, 100);
  const auto layouts = partition(schema, 100);
  EXPECT_EQ(std::count_if(layouts.begin(), layouts.end(), [](const ShardLayout& l) { return !l.slices.empty(); }), 2);
}

TEST(Partition, parameters_without_elements_have_no_slice) {
  expect_good(schema_of({0, 0, 0}), 3);
  expect_good(schema_of({0, 64, 0, 64, 0}), 2);
  expect_good({}, 4);
}

TEST(Partition, a_tensor_of_5_gigabytes_needs_64_bit_offsets) {
  expect_good(schema_of({1'250'000'000}), 3);
  EXPECT_GT(partition(schema_of({1'250'000'000}), 1)[0].buffer_bytes, 4'999'999'999);
}

TEST(Partition, does_not_depend_on_names) {
  Schema other = schema_of({100, 200, 300});
  other.parameters[1].name = "another";
  const auto a = partition(schema_of({100, 200, 300}), 5), b = partition(other, 5);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].buffer_bytes, b[i].buffer_bytes);
    EXPECT_EQ(a[i].elements, b[i].elements);
  }
}

TEST(Partition, refuses_impossible_requests) {
  EXPECT_THAT([] { partition(schema_of({1}), 0); }, ThrowsMessage<Error>(HasSubstr("0 shards")));
  EXPECT_THAT([] { partition(schema_of({1ll << 60, 1ll << 60}), 2); }, ThrowsMessage<Error>(HasSubstr("up to 'p1'")));
  EXPECT_THAT([] { partition(schema_of({1ll << 61}), 2); }, ThrowsMessage<Error>(HasSubstr("up to 'p0'")));
}

TEST(ServerOfShard, deals_contiguous_even_runs) {
  for (int shard_count = 1; shard_count < 40; ++shard_count) {
    for (int server_count = 1; server_count < 12; ++server_count) {
      std::map<int, int> shards;
      int before = 0;
      for (int shard = 0; shard < shard_count; ++shard) {
        const int server = server_of_shard(shard, shard_count, server_count);
        EXPECT_GE(server, before);
        EXPECT_LT(server, server_count);
        ++shards[server];
        before = server;
      }
      for (const auto& [server, count] : shards) {
        EXPECT_LE(count, (shard_count + server_count - 1) / server_count);
        EXPECT_GE(count, std::max(1, shard_count / server_count));
      }
      EXPECT_EQ(shards.size(), static_cast<std::size_t>(std::min(shard_count, server_count)));
    }
  }
}

TEST(ServerOfShard, refuses_impossible_requests) {
  EXPECT_THROW(server_of_shard(0, 1, 0), Error);
  EXPECT_THROW(server_of_shard(1, 1, 1), Error);
  EXPECT_THROW(server_of_shard(-1, 1, 1), Error);
}

}  // namespace
}  // namespace downpour::ps
