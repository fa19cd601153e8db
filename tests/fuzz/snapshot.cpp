// Snapshots from a disk. The first byte says what the rest is: a manifest (even), or a data file whose manifest fits it
// (odd), so that the checksums hide nothing behind them. Whatever is accepted can be saved and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/ps/snapshot_samples.h"

namespace {

using namespace downpour;
using namespace downpour::ps;

struct Sample {
  Schema schema = sample_schema();
  ShardLayout layout = partition(schema, 1)[0];
  MemoryFiles files;

  Sample() { write_snapshot(files, kSampleFolder, {}, schema, layout, sample_state(schema, layout, 1)); }
  std::optional<Shard::State> read() { return read_snapshot(files, kSampleFolder, {}, schema, layout); }
};

void read_manifest(Bytes text) {
  const Manifest manifest = decode_manifest(text, "fuzz");
  if (decode_manifest(encode_manifest(manifest), "fuzz") != manifest) {
    std::abort();
  }
  check_file(manifest, text, "fuzz");
}

void read_data(Sample& sample, Bytes data) {
  sample.files.put(kSampleFolder / "shard-0-of-1.1.10.safetensors", {data.begin(), data.end()});
  reseal(sample.files, {});
  const Shard::State state = *sample.read();
  Sample copy;
  write_snapshot(copy.files, kSampleFolder, {}, copy.schema, copy.layout, state);
  Shard shard(copy.schema, copy.layout, std::nullopt);
  if (*copy.read() != state) {
    std::abort();
  }
  shard.restore(state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  static Sample sample;
  const Bytes input = std::as_bytes(std::span(bytes, size)).subspan(1);
  try {
    bytes[0] % 2 == 0 ? read_manifest(input) : read_data(sample, input);
  } catch (const Error&) {
  }
  return 0;
}
