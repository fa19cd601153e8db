// Snapshots under crashes, power failures and disks that fail: at every call, the previous one or the new one is whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "csrc/base/log.h"
#include "csrc/ps/snapshot.h"
#include "tests/ps/snapshot_samples.h"

namespace downpour::ps {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class SnapshotCrash : public testing::Test {
 protected:
  void SetUp() override {
    layout_ = partition(schema_, 1)[0];
    set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { set_log_sink(nullptr); }

  Shard::State state(std::uint64_t seed) const { return sample_state(schema_, layout_, seed); }
  void write(Files& files, const Shard::State& state) const {
    write_snapshot(files, kSampleFolder, {}, schema_, layout_, state);
  }
  std::optional<Shard::State> read(Files& files) const {
    return read_snapshot(files, kSampleFolder, {}, schema_, layout_);
  }

  // What a folder may hold before the snapshot that is hit: nothing, an older one, one of the same version.
  std::vector<std::pair<std::string, std::optional<Shard::State>>> histories() const {
    Shard::State same_version = state(2);
    same_version.verdicts.record(9, 0, Verdict::kRefused);
    return {{"no snapshot", std::nullopt}, {"an older one", state(1)}, {"one of the same version", same_version}};
  }

  // After the failure: the previous or the new one is whole, and the next snapshot leaves nothing behind.
  void expect_recovers(MemoryFiles& files, const std::optional<Shard::State>& previous,
                       const Shard::State& next) const {
    const std::optional<Shard::State> found = read(files);
    ASSERT_TRUE(found == previous || found == next);
    write(files, state(3));
    ASSERT_TRUE(read(files) == state(3));
    ASSERT_EQ(files.list(kSampleFolder).size(), 2u);
  }

  // Runs `after` once for every call of a snapshot that can fail, with the files as the failure left them and whether
  // the writer reported it.
  void at_every_call(Fault fault,
                     const std::function<void(MemoryFiles&, const std::optional<Shard::State>&, bool failed)>& after) {
    for (const auto& [name, previous] : histories()) {
      for (int call = 0;; ++call) {
        SCOPED_TRACE(concat(name, ", call ", call));
        MemoryFiles files;
        if (previous) {
          write(files, *previous);
        }
        FaultyFiles faulty(files, fault, call);
        const bool failed = attempt(faulty);
        const bool untouched = faulty.calls() <= call;
        after(files, previous, failed);
        if (HasFatalFailure() || untouched) {
          break;
        }
        ++points_;
      }
    }
    RecordProperty("failure_points", points_);
    EXPECT_GT(points_, 40);
  }

  bool attempt(Files& files) {
    try {
      write(files, state(2));
      return false;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("'/snapshots"), AnyOf(HasSubstr(": Input/output error"),
                                                                      HasSubstr(": No space left on device"))));
      return true;
    } catch (const Crash&) {
      return true;
    }
  }

  Schema schema_ = sample_schema();
  ShardLayout layout_;
  int points_ = 0;
};

TEST_F(SnapshotCrash, process_dies_at_any_call) {
  at_every_call(Fault::kCrash,
                [&](MemoryFiles& files, const auto& previous, bool) { expect_recovers(files, previous, state(2)); });
}

TEST_F(SnapshotCrash, power_fails_at_any_call) {
  at_every_call(Fault::kCrash, [&](MemoryFiles& files, const auto& previous, bool) {
    files.lose_power();
    expect_recovers(files, previous, state(2));
  });
}

TEST_F(SnapshotCrash, power_fails_and_any_part_of_the_unsynced_is_on_the_disk) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    at_every_call(Fault::kCrash, [&](MemoryFiles& files, const auto& previous, bool) {
      files.lose_power(random);
      expect_recovers(files, previous, state(2));
    });
  }
}

TEST_F(SnapshotCrash, input_output_error_at_any_call) {
  at_every_call(Fault::kInputOutput, [&](MemoryFiles& files, const auto& previous, bool failed) {
    if (!failed) {
      EXPECT_TRUE(read(files) == state(2));
    }
    expect_recovers(files, previous, state(2));
  });
}

TEST_F(SnapshotCrash, a_rename_that_reports_failure_after_it_happened) {
  at_every_call(Fault::kLateRename,
                [&](MemoryFiles& files, const auto& previous, bool) { expect_recovers(files, previous, state(2)); });
}

TEST_F(SnapshotCrash, disk_full_once_at_any_call_leaves_no_temporary_file) {
  at_every_call(Fault::kNoSpace, [&](MemoryFiles& files, const auto& previous, bool failed) {
    if (failed) {
      EXPECT_THAT(files.list(kSampleFolder), testing::Each(testing::Not(testing::EndsWith(".tmp"))));
    }
    expect_recovers(files, previous, state(2));
  });
}

TEST_F(SnapshotCrash, full_disk_keeps_the_previous_snapshot_and_nothing_else) {
  for (const auto& [name, previous] : histories()) {
    SCOPED_TRACE(name);
    MemoryFiles files;
    if (previous) {
      write(files, *previous);
    }
    const auto before = files.list(kSampleFolder);
    FaultyFiles full(files, Fault::kFull, 0);
    EXPECT_TRUE(attempt(full));
    EXPECT_EQ(files.list(kSampleFolder), before);
    EXPECT_TRUE(read(files) == previous);
  }
}

// The same on the machine's own files, where only the process can die.
TEST_F(SnapshotCrash, process_dies_at_any_call_on_the_disk) {
  const auto disk = disk_files();
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("downpour_crash_", ::getpid());
  int call = 0;
  for (bool untouched = false; !untouched; ++call) {
    write_snapshot(*disk, folder, {}, schema_, layout_, state(1));
    FaultyFiles faulty(*disk, Fault::kCrash, call);
    try {
      write_snapshot(faulty, folder, {}, schema_, layout_, state(2));
    } catch (const Crash&) {
    }
    untouched = faulty.calls() <= call;
    const auto found = read_snapshot(*disk, folder, {}, schema_, layout_);
    EXPECT_TRUE(found == state(1) || found == state(2)) << "call " << call;
    std::filesystem::remove_all(folder);
  }
  EXPECT_GT(call, 10);
}

}  // namespace
}  // namespace downpour::ps
