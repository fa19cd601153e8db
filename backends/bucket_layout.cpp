#include "backends/bucket_layout.h"

#include <map>

namespace downpour::backends {

// Of each kind one bucket is being filled; a bucket's place is that of its last gradient, since it can leave no earlier.
std::vector<std::vector<std::size_t>> lay_out_buckets(const std::vector<GradientSize>& sizes,
                                                      const std::vector<std::size_t>& order, std::int64_t first_bytes,
                                                      std::int64_t bytes) {
  struct Open {
    std::vector<std::size_t> gradients;
    std::int64_t bytes = 0;
  };
  std::map<int, Open> open;
  std::vector<std::vector<std::size_t>> buckets;
  for (const std::size_t gradient : order) {
    Open& bucket = open[sizes[gradient].kind];
    const std::int64_t limit = buckets.empty() ? first_bytes : bytes;
    if (!bucket.gradients.empty() && bucket.bytes + sizes[gradient].bytes > limit) {
      buckets.push_back(std::move(bucket.gradients));
      bucket = {};
    }
    bucket.gradients.push_back(gradient);
    bucket.bytes += sizes[gradient].bytes;
  }
  for (auto& [kind, bucket] : open) {
    buckets.push_back(std::move(bucket.gradients));
  }
  return buckets;
}

}  // namespace downpour::backends
