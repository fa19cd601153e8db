#include "csrc/ps/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "csrc/base/log.h"
#include "csrc/base/safetensors.h"
#include "csrc/ps/manifest.h"
#include "csrc/ps/protocol_member.h"
#include "tests/ps/snapshot_samples.h"

namespace downpour::ps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

// One shard's snapshots in one folder in memory.
class Snapshot : public testing::Test {
 protected:
  void SetUp() override { layout_ = partition(schema_, 1)[0]; }

  Shard::State state(std::uint64_t seed) const { return sample_state(schema_, layout_, seed); }
  void write(Files& files, const Shard::State& state) {
    write_snapshot(files, kSampleFolder, {}, schema_, layout_, state);
  }
  std::optional<Shard::State> read() { return read_snapshot(files_, kSampleFolder, {}, schema_, layout_); }
  std::string refusal() {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  std::vector<std::byte>& data() { return files_.bytes(kSampleFolder / "shard-0-of-1.1.10.safetensors"); }
  std::vector<std::byte>& manifest() { return files_.bytes(kSampleFolder / "shard-0-of-1.json"); }

  Schema schema_ = sample_schema();
  ShardLayout layout_;
  MemoryFiles files_;
};

// ---- contents -----------------------------------------------------------------------------------------------------

TEST_F(Snapshot, none_is_no_error) { EXPECT_EQ(read(), std::nullopt); }

TEST_F(Snapshot, round_trip_of_every_rule_and_shard_count) {
  for (const RuleKind rule : {RuleKind::kSgd, RuleKind::kAdagrad, RuleKind::kAdam, RuleKind::kAdamW}) {
    const Schema schema = sample_schema(rule);
    for (const int shard_count : {1, 2, 5}) {  // of five, three are empty
      const auto layouts = partition(schema, shard_count);
      for (int shard = 0; shard < shard_count; ++shard) {
        const ShardLayout& layout = layouts[static_cast<std::size_t>(shard)];
        const Shard::State state = sample_state(schema, layout, 3);
        write_snapshot(files_, kSampleFolder, {shard, shard_count}, schema, layout, state);
        const auto found = read_snapshot(files_, kSampleFolder, {shard, shard_count}, schema, layout);
        ASSERT_TRUE(found.has_value());
        EXPECT_TRUE(*found == state);
      }
    }
  }
}

TEST_F(Snapshot, a_restored_shard_goes_on_in_the_next_generation) {
  Shard shard(schema_, layout_, std::nullopt);
  shard.restore(state(2));
  EXPECT_EQ(shard.version(), (Version{3, 20}));
  Shard::State before;
  shard.copy_state(before);
  write(files_, before);
  Shard again(schema_, layout_, std::nullopt);
  again.restore(*read());
  EXPECT_EQ(again.version(), (Version{4, 20}));
}

TEST_F(Snapshot, counters_are_those_of_the_job_that_wrote_it) {
  EXPECT_EQ(read_snapshot_counters(files_, kSampleFolder, {}, 7).applied, 0u);
  write(files_, state(1));
  EXPECT_EQ(read_snapshot_counters(files_, kSampleFolder, {}, 7).applied, 0u) << "written without any";
  JobCounters counted;
  counted.job = 7;
  counted.counters.applied = 40;
  Writer bytes;
  encode(counted, bytes);
  write_snapshot(files_, kSampleFolder, {}, schema_, layout_, state(2), bytes.bytes());
  EXPECT_EQ(read_snapshot_counters(files_, kSampleFolder, {}, 7).applied, 40u);
  EXPECT_EQ(read_snapshot_counters(files_, kSampleFolder, {}, 8).applied, 0u);
  EXPECT_TRUE(*read() == state(2));
}

TEST_F(Snapshot, an_uninitialised_shard_stays_so) {
  write(files_, Shard::zero_state(schema_, layout_));
  EXPECT_FALSE(read()->initialised);
}

TEST_F(Snapshot, is_a_safetensors_file_with_torch_optims_names) {
  write(files_, state(1));
  EXPECT_THAT(files_.list(kSampleFolder), ElementsAre("shard-0-of-1.1.10.safetensors", "shard-0-of-1.json"));
  const SafetensorsHeader header = decode_safetensors_header(data(), 1 << 20, "test");
  std::vector<std::string> names;
  for (const TensorEntry& tensor : header.tensors) {
    names.push_back(concat(tensor.name, " ", tensor.dtype));
  }
  EXPECT_THAT(
      names,
      ElementsAre("conv1.weight[0:21].step I64", "scale \"x\"[0:1] F64", "scale \"x\"[0:1].exp_avg F64",
                  "scale \"x\"[0:1].exp_avg_sq F64", "scale \"x\"[0:1].max_exp_avg_sq F64", "scale \"x\"[0:1].step I64",
                  "conv1.weight[0:21] F32", "conv1.weight[0:21].exp_avg F32", "conv1.weight[0:21].exp_avg_sq F32",
                  "conv1.weight[0:21].max_exp_avg_sq F32", "downpour.verdicts U8", "downpour.leases U8"));
  EXPECT_EQ(header.data_begin % 64, 0u);
  EXPECT_EQ(header.metadata.at("generation"), "1");
  EXPECT_EQ(header.metadata.at("version"), "10");
}

TEST_F(Snapshot, replaces_the_previous_one) {
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    write(files_, state(seed));
    EXPECT_TRUE(*read() == state(seed));
    EXPECT_EQ(files_.list(kSampleFolder).size(), 2u);
  }
}

// Refused pushes change the tables but not the version.
TEST_F(Snapshot, a_version_may_be_saved_again_and_again) {
  Shard::State same = state(1);
  for (int i = 0; i < 4; ++i) {
    same.verdicts.record(7, static_cast<std::uint64_t>(i), Verdict::kRefused);
    write(files_, same);
    EXPECT_TRUE(*read() == same);
    EXPECT_EQ(files_.list(kSampleFolder).size(), 2u);
  }
}

TEST_F(Snapshot, leaves_other_shards_alone) {
  write(files_, state(1));
  write_snapshot(files_, kSampleFolder, {0, 10}, schema_, layout_, state(2));
  write_snapshot(files_, kSampleFolder, {0, 1}, schema_, layout_, state(3));
  EXPECT_TRUE(*read_snapshot(files_, kSampleFolder, {0, 10}, schema_, layout_) == state(2));
}

// ---- corruption ---------------------------------------------------------------------------------------------------

TEST_F(Snapshot, every_flipped_bit_of_the_data_is_refused_with_its_byte_range) {
  write(files_, state(1));
  for (std::size_t i = 0; i < data().size(); ++i) {
    const std::byte mask{static_cast<unsigned char>(1u << i % 8)};
    data()[i] ^= mask;
    ASSERT_THAT(refusal(),
                AllOf(HasSubstr("shard-0-of-1.1.10.safetensors"), HasSubstr(concat("bytes 0 to ", data().size())),
                      HasSubstr("expected checksum"), HasSubstr("from a copy")));
    data()[i] ^= mask;
  }
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(Snapshot, every_truncation_of_the_data_is_refused) {
  write(files_, state(1));
  const std::vector<std::byte> whole = data();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    data().assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_THAT(refusal(), AllOf(HasSubstr(concat("bytes ", length, " to ", whole.size(), " are missing")),
                                 HasSubstr("from a copy")));
  }
  data() = whole;
  data().push_back(std::byte{0});
  EXPECT_THAT(refusal(), HasSubstr("expected at most"));
}

TEST_F(Snapshot, every_flipped_bit_and_truncation_of_the_manifest_is_refused) {
  write(files_, state(1));
  const std::vector<std::byte> whole = manifest();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      manifest() = whole;
      manifest()[i] ^= static_cast<std::byte>(1 << bit);
      const std::string text = refusal();
      // A flip between two kinds of white space changes nothing that is said.
      ASSERT_TRUE(text == "accepted" ? static_cast<int>(whole[i]) <= ' '
                                     : text.find("shard-0-of-1.json") != std::string::npos)
          << "byte " << i << " bit " << bit << ": " << text;
    }
    manifest().assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(i));
    ASSERT_TRUE(i + 1 == whole.size() || refusal() != "accepted") << "length " << i;
  }
}

TEST_F(Snapshot, names_the_corrupted_block_of_a_large_file) {
  schema_ = {{{"w", {1 << 20}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0};
  layout_ = partition(schema_, 1)[0];
  write(files_, state(1));
  EXPECT_TRUE(*read() == state(1));
  data()[(std::size_t{3} << 20) - 1] ^= std::byte{1};
  EXPECT_THAT(refusal(), HasSubstr("bytes 2097152 to 3145728"));
}

TEST_F(Snapshot, a_missing_data_file_is_named) {
  write(files_, state(1));
  files_.remove(kSampleFolder / "shard-0-of-1.1.10.safetensors");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("shard-0-of-1.1.10.safetensors"), HasSubstr("No such file")));
}

// ---- foreign snapshots --------------------------------------------------------------------------------------------

TEST_F(Snapshot, of_another_model_is_refused_naming_the_first_difference) {
  write(files_, state(1));
  Schema other = schema_;
  other.parameters[0].shape = {3, 8};
  EXPECT_THAT(
      [&] { read_snapshot(files_, kSampleFolder, {}, other, partition(other, 1)[0]); },
      ThrowsMessage<Error>(AllOf(HasSubstr("[3, 8] here"), HasSubstr("[3, 7] there"), HasSubstr("another model"))));
}

TEST_F(Snapshot, of_another_shard_is_refused) {
  write(files_, state(1));
  files_.put(kSampleFolder / "shard-1-of-2.json", manifest());
  EXPECT_THAT(
      [&] {
        read_snapshot(files_, kSampleFolder, {1, 2}, schema_, layout_);
      },
      ThrowsMessage<Error>(HasSubstr("expected shard 1 of 2, found shard 0 of 1")));
}

TEST_F(Snapshot, of_another_number_of_shards_is_refused_naming_both_and_the_way_out) {
  write(files_, state(1));
  for (const int shard : {0, 2}) {
    const auto says_all = ThrowsMessage<Error>(
        AllOf(HasSubstr("expected snapshots of 3 shards"), HasSubstr("'shard-0-of-1.json' of 1"),
              HasSubstr("--servers 1 as before"), HasSubstr("another --run-folder"), Not(HasSubstr("from a copy"))));
    const auto layout = partition(schema_, 3)[static_cast<std::size_t>(shard)];
    EXPECT_THAT([&] { read_snapshot(files_, kSampleFolder, {shard, 3}, schema_, layout); }, says_all);
  }
}

// It may have ended before it wrote any: no error, but nobody should have to find out from the loss.
TEST_F(Snapshot, that_only_other_shards_have_is_said) {
  static std::string said;
  said.clear();
  set_log_sink([](LogLevel, std::string_view line) { said += line; });
  const auto other = partition(schema_, 2)[1];
  write_snapshot(files_, kSampleFolder, {1, 2}, schema_, other, sample_state(schema_, other, 1));
  const auto found = read_snapshot(files_, kSampleFolder, {0, 2}, schema_, partition(schema_, 2)[0]);
  set_log_sink(nullptr);
  EXPECT_EQ(found, std::nullopt);
  EXPECT_THAT(said,
              AllOf(HasSubstr("shard-0-of-2.json' is not there"), HasSubstr("shard-1-of-2.json' is: this part of the "
                                                                            "model begins with the values")));
}

TEST_F(Snapshot, other_files_in_the_folder_are_no_snapshot_of_another_number_of_shards) {
  for (const char* name : {"shard-0-of-2.generation", "shard-0-of-2.1.10.safetensors", "shard-1-of-1.json",
                           "shard-.json", "shard-0-of-2.json.tmp", "shard-00-of-2.json", "notes-shard-0-of-2.json"}) {
    files_.put(kSampleFolder / name, {});
  }
  EXPECT_EQ(read(), std::nullopt);
}

TEST_F(Snapshot, cut_differently_is_refused) {
  write(files_, state(1));
  EXPECT_THAT([&] { read_snapshot(files_, kSampleFolder, {}, schema_, partition(schema_, 2)[0]); },
              ThrowsMessage<Error>(HasSubstr("tensors, found 12")));
}

TEST_F(Snapshot, a_manifest_cannot_name_files_elsewhere) {
  write(files_, state(1));
  Manifest hostile = decode_manifest(manifest(), "test");
  for (const char* name : {"../secret", "/etc/passwd", "", ".hidden", "other.safetensors", "shard-0-of-1.json"}) {
    hostile.file = name;
    files_.put(kSampleFolder / "shard-0-of-1.json", encode_manifest(hostile));
    EXPECT_THAT(refusal(),
                testing::AnyOf(HasSubstr("is no plain file name"), HasSubstr("is no data file of shard-0-of-1")))
        << name;
  }
}

TEST_F(Snapshot, a_size_that_no_such_shard_has_is_refused_before_reading) {
  write(files_, state(1));
  Manifest hostile = decode_manifest(manifest(), "test");
  hostile.file_bytes = hostile.block_bytes = std::uint64_t{1} << 50;
  files_.put(kSampleFolder / "shard-0-of-1.json", encode_manifest(hostile));
  EXPECT_THAT(refusal(), HasSubstr("the manifest says 1125899906842624 bytes"));
}

// Behind the checksums: whatever the data file holds, it is refused or is a state that can be saved again.
TEST_F(Snapshot, no_data_file_breaks_the_reader) {
  write(files_, state(1));
  const std::vector<std::byte> whole = data();
  Random random(8);
  for (int round = 0; round < 5000; ++round) {
    data() = whole;
    for (std::uint64_t i = 1 + random.below(3); i > 0; --i) {
      data()[random.below(whole.size())] = static_cast<std::byte>(random.below(256));
    }
    reseal(files_, {});
    try {
      const Shard::State found = *read();
      MemoryFiles copy;
      write(copy, found);
      EXPECT_TRUE(*read_snapshot(copy, kSampleFolder, {}, schema_, layout_) == found);
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), HasSubstr("from a copy"));
    }
  }
}

TEST_F(Snapshot, resealed_truncations_are_refused) {
  write(files_, state(1));
  const std::vector<std::byte> whole = data();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    data().assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    reseal(files_, {});
    ASSERT_NE(refusal(), "accepted") << length;
  }
}

// ---- the machine's own files --------------------------------------------------------------------------------------

TEST_F(Snapshot, on_the_disk) {
  const auto files = disk_files();
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("downpour_snapshot_", ::getpid()) / "deep";
  for (const std::uint64_t seed : {1, 2}) {
    write_snapshot(*files, folder, {}, schema_, layout_, state(seed));
    EXPECT_TRUE(*read_snapshot(*files, folder, {}, schema_, layout_) == state(seed));
    EXPECT_EQ(files->list(folder).size(), 2u);
  }
  struct stat status {};
  ASSERT_EQ(::stat((folder / "shard-0-of-1.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  std::filesystem::remove_all(folder.parent_path());
}

}  // namespace
}  // namespace downpour::ps
