// The seeds of the fuzz targets of this layer stay what they are meant to be: valid, so that the fuzzer begins behind
// the first checks. After a change of a format: --gtest_also_run_disabled_tests --gtest_filter='Corpus.DISABLED_*'
// writes them anew.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/ps/snapshot_samples.h"

namespace downpour::ps {
namespace {

const std::filesystem::path kCorpus = std::filesystem::path(DOWNPOUR_TEST_FOLDER) / ".." / "fuzz" / "corpus";

std::vector<Schema> schemas() {
  return {{},
          sample_schema(),
          {{{"fc.weight", {10, 84}, Dtype::kFloat32, 0}, {"fc.bias", {10}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0}};
}

// What the snapshot target takes: which part it is, then its bytes.
std::vector<std::byte> seed(unsigned char part, Bytes bytes) {
  std::vector<std::byte> all{std::byte{part}};
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

MemoryFiles sample_files() {
  MemoryFiles files;
  const Schema schema = sample_schema();
  const ShardLayout layout = partition(schema, 1)[0];
  write_snapshot(files, kSampleFolder, {}, schema, layout, sample_state(schema, layout, 1));
  return files;
}

std::vector<std::pair<std::filesystem::path, std::vector<std::byte>>> seeds() {
  std::vector<std::pair<std::filesystem::path, std::vector<std::byte>>> all;
  for (const Schema& schema : schemas()) {
    all.emplace_back(concat("schema/", all.size()), schema.encode());
  }
  MemoryFiles files = sample_files();
  all.emplace_back("snapshot/manifest", seed(0, files.bytes(kSampleFolder / "shard-0-of-1.json")));
  all.emplace_back("snapshot/data", seed(1, files.bytes(kSampleFolder / "shard-0-of-1.1.10.safetensors")));
  return all;
}

TEST(Corpus, seeds_are_current) {
  const auto files = disk_files();
  for (const auto& [name, bytes] : seeds()) {
    EXPECT_EQ(files->read(kCorpus / name, 1 << 20), bytes) << name;
  }
}

TEST(Corpus, DISABLED_writes_the_seeds) {
  const auto files = disk_files();
  for (const auto& [name, bytes] : seeds()) {
    const auto file = files->create(kCorpus / name);
    file->write(bytes);
    file->close();
  }
}

}  // namespace
}  // namespace downpour::ps
