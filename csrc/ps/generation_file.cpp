#include "csrc/ps/generation_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace downpour::ps {
namespace {

constexpr std::size_t kLongestNumber = 20;

std::optional<std::uint64_t> read_number(Files& files, const std::filesystem::path& path) try {
  if (!files.exists(path)) {
    return std::nullopt;
  }
  const std::vector<std::byte> text = files.read(path, kLongestNumber);
  const auto* begin = reinterpret_cast<const char*>(text.data());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(begin, begin + text.size(), number);
  DOWNPOUR_CHECK(error == std::errc() && end == begin + text.size(), "'", path.string(), "': no decimal number");
  return number;
} catch (const Error& error) {
  log_warning("the generation of a shard begins anew: ", error.what());
  return std::nullopt;
}

}  // namespace

std::uint64_t begin_generation(Files& files, const std::filesystem::path& folder, SnapshotId id, std::uint64_t least) {
  const std::string name = concat("shard-", id.shard, "-of-", id.shard_count, ".generation");
  const auto before = read_number(files, folder / name);
  const std::uint64_t generation = std::max(least, before ? *before + 1 : 0);
  const auto temporary = folder / (name + ".tmp");
  files.create_folders(folder);
  const auto file = files.create(temporary);
  file->write(as_bytes(std::to_string(generation)));
  file->sync();
  file->close();
  files.rename(temporary, folder / name);
  files.sync_folder(folder);
  return generation;
}

}  // namespace downpour::ps
