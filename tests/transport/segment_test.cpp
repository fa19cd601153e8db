#include "csrc/transport/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <limits>

#include "csrc/transport/ring.h"

namespace downpour::transport {
namespace {

Fd duplicate(int fd) { return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

Fd memory_of(std::uint64_t bytes, int seals) {
  Fd memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}

std::uint64_t file_bytes(int fd) {
  struct stat status {};
  EXPECT_EQ(fstat(fd, &status), 0);
  return static_cast<std::uint64_t>(status.st_size);
}

const Segment::Sizes kSizes{.ring_bytes = 4096, .to_acceptor_window_bytes = 100'000, .to_connector_window_bytes = 3};

// Runs `act` and returns what it complained about as an error of type E.
template <typename E, typename Act>
std::string complaint(Act act) {
  try {
    act();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Segment, BothEndsSeeTheSameBytes) {
  const auto ours = Segment::create(kSizes);
  const auto theirs = Segment::map(duplicate(ours->fd()), kSizes);
  ours->window_to_connector()[2] = std::byte{7};
  theirs->window_to_acceptor().back() = std::byte{8};
  ours->ring_to_acceptor()[0] = std::byte{9};
  theirs->ring_to_connector().back() = std::byte{10};
  ours->control_to_connector()[0] = std::byte{11};
  EXPECT_EQ(theirs->window_to_connector()[2], std::byte{7});
  EXPECT_EQ(ours->window_to_acceptor().back(), std::byte{8});
  EXPECT_EQ(theirs->ring_to_acceptor()[0], std::byte{9});
  EXPECT_EQ(ours->ring_to_connector().back(), std::byte{10});
  EXPECT_EQ(theirs->control_to_connector()[0], std::byte{11});
  EXPECT_EQ(theirs->control_to_acceptor()[0], std::byte{0});
}

TEST(Segment, PartsHaveTheirSizesAndDoNotOverlap) {
  const auto segment = Segment::create(kSizes);
  const std::vector<MutableBytes> parts = {segment->control_to_acceptor(), segment->control_to_connector(),
                                           segment->ring_to_acceptor(),    segment->ring_to_connector(),
                                           segment->window_to_acceptor(),  segment->window_to_connector()};
  const std::vector<std::uint64_t> expected = {kRingControlBytes, kRingControlBytes, 4096, 4096, 100'000, 3};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].size(), expected[i]);
    if (i > 0) {
      EXPECT_GE(parts[i].data(), parts[i - 1].data() + parts[i - 1].size()) << i;
    }
    if (i >= 2) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parts[i].data()) % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)),
                0u);
    }
  }
}

TEST(Segment, StartsAsZeroesWithoutWindows) {
  const auto segment = Segment::create({});
  EXPECT_TRUE(segment->window_to_acceptor().empty());
  EXPECT_TRUE(segment->window_to_connector().empty());
  EXPECT_THAT(segment->control_to_acceptor(), testing::Each(std::byte{0}));
}

TEST(Segment, CannotBeResizedOrUnsealedOrInherited) {
  const auto segment = Segment::create(kSizes);
  EXPECT_NE(ftruncate(segment->fd(), 4096), 0);
  EXPECT_NE(ftruncate(segment->fd(), 1 << 30), 0);
  EXPECT_NE(fcntl(segment->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(fcntl(segment->fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, LargeWindowsTakeNoMemoryUntilTouched) {
  const auto segment =
      Segment::create({.to_acceptor_window_bytes = 64ull << 30, .to_connector_window_bytes = 64ull << 30});
  segment->window_to_acceptor().back() = std::byte{1};
  struct stat status {};
  ASSERT_EQ(fstat(segment->fd(), &status), 0);
  EXPECT_LE(status.st_blocks * 512, 4 << 20);
}

TEST(Segment, OutlivesTheDescriptorOfTheOtherEnd) {
  auto ours = Segment::create(kSizes);
  const auto theirs = Segment::map(duplicate(ours->fd()), kSizes);
  ours->window_to_acceptor()[5] = std::byte{42};
  ours.reset();
  EXPECT_EQ(theirs->window_to_acceptor()[5], std::byte{42});
}

TEST(Segment, CreateRefusesSizesThatMakeNoSegment) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::vector<Segment::Sizes> wrong = {
      {.ring_bytes = 0},
      {.ring_bytes = 32},
      {.ring_bytes = 4095},
      {.to_acceptor_window_bytes = most},
      {.to_connector_window_bytes = most},
      {.to_acceptor_window_bytes = 1ull << 63},
      {.to_acceptor_window_bytes = most / 2 - 4096},
      {.to_acceptor_window_bytes = most / 2 + 1, .to_connector_window_bytes = most / 2 + 1},
      {.to_acceptor_window_bytes = 1ull << 62, .to_connector_window_bytes = 1ull << 62},
  };
  for (const Segment::Sizes& sizes : wrong) {
    EXPECT_THAT(complaint<Error>([&] { Segment::create(sizes); }), testing::HasSubstr("make no segment"));
    EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(memory_of(4096, F_SEAL_SHRINK | F_SEAL_GROW), sizes); }),
                testing::HasSubstr("make no segment"));
  }
}

TEST(Segment, CreateSaysHowManyBytesTheSystemRefused) {
  const Segment::Sizes sizes{.to_acceptor_window_bytes = 1ull << 61};
  EXPECT_THAT(complaint<CommError>([&] { Segment::create(sizes); }), testing::HasSubstr("23058430092"));
}

TEST(Segment, MapRefusesWhatIsNoMemfd) {
  Fd directory(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(std::move(directory), kSizes); }),
              testing::HasSubstr("no memfd"));
  EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(std::move(null), kSizes); }), testing::HasSubstr("no memfd"));
  EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(Fd(), kSizes); }), testing::HasSubstr("no memfd"));
}

TEST(Segment, MapRefusesMissingSealsAndAnotherSize) {
  const std::uint64_t bytes = file_bytes(Segment::create(kSizes)->fd());
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(memory_of(bytes, seals), kSizes); }),
                testing::HasSubstr("seals"));
  }
  const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_NO_THROW(Segment::map(memory_of(bytes, sealed), kSizes));
  for (const std::uint64_t other : {std::uint64_t{0}, bytes - 1, bytes + 1, 2 * bytes}) {
    EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(memory_of(other, sealed), kSizes); }),
                testing::HasSubstr(concat("expected ", bytes, " bytes, found ", other)));
  }
}

TEST(Segment, MapRefusesHugePagesWhichMayRunOut) {
  Fd memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!memory || fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    GTEST_SKIP() << "this kernel has no huge page files";
  }
  EXPECT_THAT(complaint<ProtocolError>([&] { Segment::map(std::move(memory), kSizes); }),
              testing::HasSubstr("no memfd"));
}

TEST(Segment, MapReportsMemoryThatMayNotBeWritten) {
  const std::uint64_t bytes = file_bytes(Segment::create(kSizes)->fd());
  EXPECT_THAT(
      complaint<CommError>([&] { Segment::map(memory_of(bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), kSizes); }),
      testing::HasSubstr("mapping"));
}

}  // namespace
}  // namespace downpour::transport
