#include "csrc/ps/snapshot.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <utility>

#include "csrc/base/checksum.h"
#include "csrc/base/log.h"
#include "csrc/base/safetensors.h"
#include "csrc/ps/manifest.h"
#include "csrc/ps/protocol_member.h"

namespace downpour::ps {
namespace {

using std::filesystem::path;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxManifestBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxTableBytes = std::size_t{1} << 30;
// A parameter's name has at most 1024 bytes, six times as many when all of them are escaped.
constexpr std::uint64_t kMaxEntryBytes = 8192;
constexpr std::string_view kVerdicts = "downpour.verdicts";
constexpr std::string_view kLeases = "downpour.leases";
constexpr std::string_view kDataSuffix = ".safetensors";

// ---- names --------------------------------------------------------------------------------------------------------

std::string stem(SnapshotId id) { return concat("shard-", id.shard, "-of-", id.shard_count); }
path manifest_path(const path& folder, SnapshotId id) { return folder / (stem(id) + ".json"); }

bool is_data_of(std::string_view name, SnapshotId id) {
  return name.starts_with(stem(id) + ".") && name.ends_with(kDataSuffix);
}

path temporary(const path& folder, SnapshotId id, std::string_view suffix) {
  return folder / concat(stem(id), suffix, ".tmp");
}

// A version may be saved twice (refused pushes change the tables but not the version): a file that is there may be
// the one that counts.
std::string free_name(Files& files, const path& folder, SnapshotId id, Version version) {
  const std::string base = concat(stem(id), ".", version.generation, ".", version.version);
  std::string name = concat(base, kDataSuffix);
  for (int again = 1; files.exists(folder / name); ++again) {
    name = concat(base, ".", again, kDataSuffix);
  }
  return name;
}

// ---- contents -----------------------------------------------------------------------------------------------------

// One tensor of the file and the memory it is saved from or restored to.
template <typename Byte>
struct Piece {
  TensorEntry entry;
  std::span<Byte> memory;
};

std::string slice_name(const Schema& schema, const Slice& slice) {
  return concat(schema.parameters[slice.parameter].name, "[", slice.begin, ":", slice.begin + slice.count, "]");
}

// Every tensor but the tables, in the file's order: by falling element size, so that all are aligned.
template <typename Byte, typename State>
std::vector<Piece<Byte>> pieces_of(const Schema& schema, const ShardLayout& layout, State& state) {
  std::vector<Piece<Byte>> pieces;
  for (std::size_t i = 0; i < layout.slices.size(); ++i) {
    const Slice& slice = layout.slices[i];
    const std::string name = slice_name(schema, slice);
    const std::string dtype = slice.dtype == Dtype::kFloat64 ? "F64" : "F32";
    const auto add = [&](const std::string& tensor, auto& buffer) {
      const auto offset = static_cast<std::size_t>(slice.offset_bytes),
                 size = static_cast<std::size_t>(slice.size_bytes());
      pieces.push_back({{tensor, dtype, {slice.count}}, std::span<Byte>(buffer).subspan(offset, size)});
    };
    add(name, state.values);
    for (std::size_t k = 0; k < state.optimizer_state.size(); ++k) {
      add(concat(name, ".", state_name(schema.rule, static_cast<int>(k))), state.optimizer_state[k]);
    }
    pieces.push_back({{name + ".step", "I64", {}}, {reinterpret_cast<Byte*>(&state.steps[i]), sizeof(std::int64_t)}});
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece<Byte>& a, const Piece<Byte>& b) {
    return safetensors_element_bytes(a.entry.dtype) > safetensors_element_bytes(b.entry.dtype);
  });
  return pieces;
}

std::map<std::string, std::string> metadata_of(const Schema& schema, const Shard::State& state) {
  return {{"generation", concat(state.version.generation)},
          {"version", concat(state.version.version)},
          {"schema_hash", concat(schema.hash())},
          {"initialised", state.initialised ? "1" : "0"}};
}

template <typename Table>
std::vector<std::byte> encoded(const Table& table) {
  Writer out;
  table.encode(out);
  return out.take();
}

// ---- writing ------------------------------------------------------------------------------------------------------

// Gathers what is written into blocks: one write and one checksum each, however small the tensors are.
class BlockWriter {
 public:
  explicit BlockWriter(File& file) : file_(file) { block_.reserve(kBlockBytes); }

  void write(Bytes bytes) {
    while (!bytes.empty()) {
      const Bytes head = bytes.first(std::min(bytes.size(), kBlockBytes - block_.size()));
      block_.insert(block_.end(), head.begin(), head.end());
      bytes = bytes.subspan(head.size());
      if (block_.size() == kBlockBytes) {
        flush();
      }
    }
  }
  void finish(Manifest& manifest) {
    flush();
    manifest.file_bytes = written_bytes_;
    manifest.block_bytes = kBlockBytes;
    manifest.checksums = std::move(checksums_);
  }

 private:
  void flush() {
    if (block_.empty()) {
      return;
    }
    file_.write(block_);
    checksums_.push_back(checksum(block_));
    written_bytes_ += block_.size();
    block_.clear();
  }

  File& file_;
  std::vector<std::byte> block_;
  std::vector<std::uint64_t> checksums_;
  std::uint64_t written_bytes_ = 0;
};

// Fills in the manifest's sizes and checksums.
void write_data(File& file, const Schema& schema, const ShardLayout& layout, const Shard::State& state,
                Manifest& manifest) {
  auto pieces = pieces_of<const std::byte>(schema, layout, state);
  const std::vector<std::byte> verdicts = encoded(state.verdicts), leases = encoded(state.leases);
  pieces.push_back({{std::string(kVerdicts), "U8", {static_cast<std::int64_t>(verdicts.size())}}, verdicts});
  pieces.push_back({{std::string(kLeases), "U8", {static_cast<std::int64_t>(leases.size())}}, leases});
  SafetensorsHeader header{metadata_of(schema, state), {}};
  for (const auto& piece : pieces) {
    header.tensors.push_back(piece.entry);
  }
  BlockWriter out(file);
  out.write(encode_safetensors_header(header));
  for (const auto& piece : pieces) {
    out.write(piece.memory);
  }
  out.finish(manifest);
}

template <typename Fill>
void write_whole(Files& files, const path& target, const Fill& fill) {
  const std::unique_ptr<File> file = files.create(target);
  fill(*file);
  file->sync();
  file->close();
}

void remove_quietly(Files& files, std::initializer_list<path> paths) {
  for (const path& each : paths) {
    try {
      files.remove(each);
    } catch (const Error& error) {
      log_warning("a file of a failed snapshot stays on the disk: ", error.what());
    }
  }
}

// What is left of older snapshots and of crashes. That it cannot be removed is no reason to fail: the new one is good.
void remove_others(Files& files, const path& folder, SnapshotId id, std::string_view in_use) {
  try {
    for (const std::string& name : files.list(folder)) {
      if (is_data_of(name, id) && name != in_use) {
        files.remove(folder / name);
      }
    }
  } catch (const Error& error) {
    log_warning("an old snapshot stays on the disk: ", error.what());
  }
}

// ---- reading ------------------------------------------------------------------------------------------------------

// The shard count in a manifest's name; nullopt for any other file.
std::optional<int> count_in_name(std::string_view name) {
  int shard = 0, count = 0, length = 0;
  const std::string text(name);
  const bool fits = std::sscanf(text.c_str(), "shard-%7d-of-%7d%n", &shard, &count, &length) == 2;
  return fits && text == stem({shard, count}) + ".json" ? std::optional(count) : std::nullopt;
}

// Parameters are cut by the number of shards: to begin anew beside what another number has learnt would hide that it is lost.
void check_no_other_count(Files& files, const path& folder, SnapshotId id) {
  for (const std::string& name : files.list(folder)) {
    const int found = count_in_name(name).value_or(id.shard_count);
    DOWNPOUR_CHECK(found == id.shard_count, "snapshot folder '", folder.string(), "': expected snapshots of ",
                   id.shard_count, " shards, found '", name, "' of ", found, ": start the job with --servers ", found,
                   " as before, or with another --run-folder to begin from the initial values");
  }
}

// A shard that ended before its first snapshot has none. But one that others of its job have may have been lost.
void warn_of_others(Files& files, const path& folder, SnapshotId id) {
  for (int shard = 0; shard < id.shard_count; ++shard) {
    const path other = manifest_path(folder, {shard, id.shard_count});
    if (shard != id.shard && files.exists(other)) {
      log_warning(
          "shard ", id.shard, ": '", manifest_path(folder, id).string(), "' is not there, '", other.string(),
          "' is: this part of the model begins with the values that worker 0 offers. Where it had been saved, end "
          "the job and restore that file");
      return;
    }
  }
}

bool has_snapshot(Files& files, const path& folder, SnapshotId id) {
  if (files.exists(manifest_path(folder, id))) {
    return true;
  }
  check_no_other_count(files, folder, id);
  warn_of_others(files, folder, id);
  return false;
}

Manifest read_manifest(Files& files, const path& folder, SnapshotId id) {
  const path where = manifest_path(folder, id);
  const std::string what = concat("snapshot manifest '", where.string(), "'");
  Manifest manifest = decode_manifest(files.read(where, kMaxManifestBytes), what);
  DOWNPOUR_CHECK(manifest.shard == id.shard && manifest.shard_count == id.shard_count, what, ": expected shard ",
                 id.shard, " of ", id.shard_count, ", found shard ", manifest.shard, " of ", manifest.shard_count);
  DOWNPOUR_CHECK(is_data_of(manifest.file, id), what, ": '", manifest.file, "' is no data file of ", stem(id));
  return manifest;
}

void check_schema(const Manifest& manifest, const Schema& schema, const path& where) {
  const auto difference = first_difference(schema, decode_schema(manifest.schema));
  DOWNPOUR_CHECK(!difference, "snapshot '", where.string(),
                 "' is of another model or optimizer: ", difference.value_or(""),
                 " (here: this job, there: the snapshot)");
}

std::vector<std::byte> read_data(Files& files, const path& where, const Manifest& manifest, std::uint64_t limit_bytes) {
  const std::string what = concat("snapshot '", where.string(), "'");
  DOWNPOUR_CHECK(manifest.file_bytes <= limit_bytes, what, ": the manifest says ", manifest.file_bytes,
                 " bytes, this shard needs at most ", limit_bytes);
  std::vector<std::byte> file = files.read(where, manifest.file_bytes);
  check_file(manifest, file, what);
  return file;
}

void check_metadata(const SafetensorsHeader& header, const Schema& schema, const Shard::State& state,
                    std::string_view what) {
  const auto expected = metadata_of(schema, state);
  for (const auto& [key, value] : expected) {
    const auto found = header.metadata.find(key);
    DOWNPOUR_CHECK(found != header.metadata.end() && found->second == value, what, ": metadata '", key, "': expected ",
                   value, ", found ", found != header.metadata.end() ? found->second : "none");
  }
}

// The bytes of a table, which may have any length.
Reader table_of(const SafetensorsHeader& header, Bytes file, std::size_t index, std::string_view name,
                std::string_view what) {
  const TensorEntry& tensor = header.tensors[index];
  DOWNPOUR_CHECK(tensor.name == name && tensor.dtype == "U8", what, ": expected tensor '", name, "' of U8, found '",
                 tensor.name, "' of ", tensor.dtype);
  return {file.subspan(header.data_begin + tensor.begin, tensor.size_bytes()), name};
}

void read_tables(const SafetensorsHeader& header, Bytes file, Shard::State& state, std::string_view what) {
  Reader verdicts = table_of(header, file, header.tensors.size() - 2, kVerdicts, what);
  state.verdicts = VerdictTable::decode(verdicts);
  verdicts.finish();
  Reader leases = table_of(header, file, header.tensors.size() - 1, kLeases, what);
  state.leases = LeaseTable::decode(leases);
  leases.finish();
}

void read_pieces(const SafetensorsHeader& header, Bytes file, const std::vector<Piece<std::byte>>& pieces,
                 std::string_view what) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const TensorEntry &found = header.tensors[i], &expected = pieces[i].entry;
    DOWNPOUR_CHECK(found.name == expected.name && found.dtype == expected.dtype && found.shape == expected.shape, what,
                   ": tensor ", i, ": expected '", expected.name, "' of ", expected.dtype, ", found '", found.name,
                   "' of ", found.dtype, "; the snapshot was cut differently");
    const Bytes bytes = file.subspan(header.data_begin + found.begin, found.size_bytes());
    std::copy(bytes.begin(), bytes.end(), pieces[i].memory.begin());
  }
}

Shard::State parse_data(Bytes file, const Manifest& manifest, const Schema& schema, const ShardLayout& layout,
                        std::string_view what) {
  Shard::State state = Shard::zero_state(schema, layout);
  const auto pieces = pieces_of<std::byte>(schema, layout, state);
  const std::size_t entries = pieces.size() + 2;
  const SafetensorsHeader header = decode_safetensors_header(file, (entries + 1) * kMaxEntryBytes, what);
  DOWNPOUR_CHECK(header.tensors.size() == entries, what, ": expected ", entries, " tensors, found ",
                 header.tensors.size());
  state.version = manifest.version;
  const auto initialised = header.metadata.find("initialised");
  state.initialised = initialised != header.metadata.end() && initialised->second == "1";
  check_metadata(header, schema, state, what);
  read_pieces(header, file, pieces, what);
  read_tables(header, file, state, what);
  return state;
}

// The largest file that a shard of this layout can have.
std::uint64_t largest_file_bytes(const Schema& schema, const ShardLayout& layout) {
  const auto buffers = 1 + static_cast<std::uint64_t>(state_buffers(schema));
  const std::uint64_t entries = layout.slices.size() * (buffers + 1) + 3;
  return buffers * static_cast<std::uint64_t>(layout.buffer_bytes) + entries * kMaxEntryBytes + kMaxTableBytes;
}

// Whatever is wrong with a snapshot is an Error of it (not of a peer) and ends with the way out.
template <typename Read>
auto with_advice(const path& folder, SnapshotId id, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(concat(error.what(), ". Restore '", manifest_path(folder, id).string(),
                       "' and the data file it names from a copy, "
                       "or start with another --run-folder from the initial values, as a program with another model or "
                       "optimizer must"));
  }
}

}  // namespace

void write_snapshot(Files& files, const path& folder, SnapshotId id, const Schema& schema, const ShardLayout& layout,
                    const Shard::State& state, Bytes counted) {
  files.create_folders(folder);
  Manifest manifest;
  manifest.shard = id.shard;
  manifest.shard_count = id.shard_count;
  manifest.version = state.version;
  manifest.schema = schema.encode();
  manifest.counted = {counted.begin(), counted.end()};
  manifest.file = free_name(files, folder, id, state.version);
  const path data = folder / manifest.file, data_temporary = temporary(folder, id, kDataSuffix);
  const path target = manifest_path(folder, id), target_temporary = temporary(folder, id, ".json");
  try {
    write_whole(files, data_temporary, [&](File& file) { write_data(file, schema, layout, state, manifest); });
    files.rename(data_temporary, data);
    files.sync_folder(folder);
    write_whole(files, target_temporary, [&](File& file) { file.write(encode_manifest(manifest)); });
  } catch (const Error&) {
    remove_quietly(files, {data_temporary, data, target_temporary});
    throw;
  }
  try {
    files.rename(target_temporary, target);
  } catch (const Error&) {
    remove_quietly(files, {target_temporary});
    throw;
  }
  // From here on the new snapshot counts.
  files.sync_folder(folder);
  remove_others(files, folder, id, manifest.file);
}

std::optional<Shard::State> read_snapshot(Files& files, const path& folder, SnapshotId id, const Schema& schema,
                                          const ShardLayout& layout) {
  if (!has_snapshot(files, folder, id)) {
    return std::nullopt;
  }
  return with_advice(folder, id, [&]() -> std::optional<Shard::State> {
    const Manifest manifest = read_manifest(files, folder, id);
    check_schema(manifest, schema, manifest_path(folder, id));
    const path where = folder / manifest.file;
    const auto file = read_data(files, where, manifest, largest_file_bytes(schema, layout));
    return parse_data(file, manifest, schema, layout, concat("snapshot '", where.string(), "'"));
  });
}

ShardCounters read_snapshot_counters(Files& files, const path& folder, SnapshotId id, std::uint64_t job) {
  if (!has_snapshot(files, folder, id)) {
    return {};
  }
  return with_advice(folder, id, [&]() -> ShardCounters {
    const std::vector<std::byte> counted = read_manifest(files, folder, id).counted;
    const JobCounters found = counted.empty() ? JobCounters{} : decode<JobCounters>(counted);
    return found.job == job ? found.counters : ShardCounters{};
  });
}

}  // namespace downpour::ps
