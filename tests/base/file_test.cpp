#include "csrc/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace downpour {
namespace {

using std::filesystem::path;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

// A folder of its own for each test.
class DiskFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "downpour_file_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void put(const path& where, std::string_view text) {
    const auto file = files_->create(where);
    file->write(as_bytes(text));
    file->close();
  }
  std::string get(const path& where) {
    const auto bytes = files_->read(where, 1 << 20);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  path folder_;
  std::unique_ptr<Files> files_ = disk_files();
};

TEST_F(DiskFiles, writes_append_and_create_truncates) {
  const auto file = files_->create(folder_ / "a");
  file->write(as_bytes("one "));
  file->write({});
  file->write(as_bytes("two"));
  file->sync();
  file->close();
  EXPECT_EQ(get(folder_ / "a"), "one two");
  put(folder_ / "a", "3");
  EXPECT_EQ(get(folder_ / "a"), "3");
  put(folder_ / "a", "");
  EXPECT_EQ(get(folder_ / "a"), "");
}

TEST_F(DiskFiles, are_private) {
  put(folder_ / "a", "x");
  struct stat status {};
  ASSERT_EQ(::stat((folder_ / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  files_->create_folders(folder_ / "b" / "c");
  ASSERT_EQ(::stat((folder_ / "b" / "c").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_NO_THROW(files_->create_folders(folder_ / "b" / "c"));
}

TEST_F(DiskFiles, a_closed_file_is_refused) {
  const auto file = files_->create(folder_ / "a");
  file->close();
  EXPECT_THAT([&] { file->write(as_bytes("x")); }, ThrowsMessage<Error>(HasSubstr("used after close()")));
  EXPECT_THROW(file->sync(), Error);
  EXPECT_THROW(file->close(), Error);
}

TEST_F(DiskFiles, read_has_a_limit) {
  put(folder_ / "a", "12345");
  EXPECT_EQ(files_->read(folder_ / "a", 5).size(), 5u);
  EXPECT_THAT([&] { files_->read(folder_ / "a", 4); },
              ThrowsMessage<Error>(HasSubstr("expected at most 4 bytes, found 5")));
}

TEST_F(DiskFiles, a_huge_sparse_file_is_refused_by_its_size) {
  put(folder_ / "a", "");
  ASSERT_EQ(::truncate((folder_ / "a").c_str(), off_t{1} << 42), 0);
  EXPECT_THROW(files_->read(folder_ / "a", 1 << 20), Error);
}

TEST_F(DiskFiles, symbolic_links_are_never_followed) {
  put(folder_ / "target", "secret");
  std::filesystem::create_symlink(folder_ / "target", folder_ / "link");
  EXPECT_THAT([&] { files_->read(folder_ / "link", 100); }, ThrowsMessage<Error>(HasSubstr("link")));
  EXPECT_THAT([&] { files_->create(folder_ / "link"); }, ThrowsMessage<Error>(HasSubstr("link")));
  EXPECT_EQ(get(folder_ / "target"), "secret");
}

TEST_F(DiskFiles, only_regular_files_are_read) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { files_->read(folder_ / "pipe", 100); }, ThrowsMessage<Error>(HasSubstr("not a regular file")));
  EXPECT_THROW(files_->read(folder_, 100), Error);
}

TEST_F(DiskFiles, rename_replaces_and_remove_forgives) {
  put(folder_ / "a", "new");
  put(folder_ / "b", "old");
  files_->rename(folder_ / "a", folder_ / "b");
  EXPECT_FALSE(files_->exists(folder_ / "a"));
  EXPECT_EQ(get(folder_ / "b"), "new");
  files_->remove(folder_ / "b");
  EXPECT_FALSE(files_->exists(folder_ / "b"));
  EXPECT_NO_THROW(files_->remove(folder_ / "b"));
}

TEST_F(DiskFiles, list_is_sorted_and_forgives_a_missing_folder) {
  put(folder_ / "b", "");
  put(folder_ / "a", "");
  EXPECT_THAT(files_->list(folder_), ElementsAre("a", "b"));
  EXPECT_THAT(files_->list(folder_ / "missing"), IsEmpty());
  EXPECT_THAT(files_->list(folder_ / "a"), IsEmpty()) << "no folder";
}

TEST_F(DiskFiles, folders_are_synced) {
  EXPECT_NO_THROW(files_->sync_folder(folder_));
  EXPECT_THAT([&] { files_->sync_folder(folder_ / "missing"); }, ThrowsMessage<Error>(HasSubstr("missing")));
}

// Path, operation and the system's reason.
TEST_F(DiskFiles, errors_name_the_path_the_operation_and_the_reason) {
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  const path missing = folder_ / "missing" / "file";
  const auto names = [&](std::string_view operation) {
    return AllOf(HasSubstr(missing.string()), HasSubstr(std::string(operation)),
                 HasSubstr("No such file or directory"));
  };
  EXPECT_THAT(error_of([&] { files_->create(missing); }), names("create"));
  EXPECT_THAT(error_of([&] { files_->read(missing, 1); }), names("open"));
  EXPECT_THAT(error_of([&] { files_->rename(missing, folder_ / "x"); }), names("rename to"));
  put(folder_ / "file", "");
  EXPECT_THAT(error_of([&] { files_->create_folders(folder_ / "file" / "x"); }), HasSubstr("mkdir: Not a directory"));
  EXPECT_THAT(error_of([&] { files_->remove(folder_ / "file" / "x"); }), HasSubstr("remove: Not a directory"));
  EXPECT_FALSE(files_->exists(folder_ / "file" / "x")) << "below what is no folder";
}

TEST_F(DiskFiles, a_full_disk_is_reported) {
  if (::access("/dev/full", W_OK) != 0) {
    GTEST_SKIP() << "no /dev/full here";
  }
  const auto file = files_->create("/dev/full");
  EXPECT_THAT([&] { file->write(as_bytes("x")); },
              ThrowsMessage<Error>(HasSubstr("'/dev/full': write: No space left on device")));
}

}  // namespace
}  // namespace downpour
