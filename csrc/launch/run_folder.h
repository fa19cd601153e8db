#pragma once

#include <filesystem>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/launch/output.h"
#include "csrc/launch/target_text.h"

namespace downpour::launch {

// Of a job's run folder.
inline std::filesystem::path snapshot_folder(const std::filesystem::path& run_folder) {
  return run_folder / "snapshots";
}

// Where a job keeps its snapshots, logs and summary; one job at a time: it holds a lock. A fresh folder dies with this object,
// unless it was worth keeping.
class RunFolder {
 public:
  // The folder given, made with mode 0700 when it is not there; or a fresh one below `temporary`.
  // Errors: Error naming the path and the reason, e.g. which process uses it, or that nothing can be written there: bad input,
  // said before anything is started. One that stops being writable later stops no training: snapshots, logs and the summary
  // are then missed out loud.
  RunFolder(const std::filesystem::path& given, const std::filesystem::path& temporary);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // For a job with servers. Errors: Error, as above, where something is there already into which they could not write.
  void check_snapshots() const;

  const std::filesystem::path& path() const { return path_; }
  bool kept() const { return kept_; }
  void keep() { kept_ = true; }
  std::filesystem::path snapshots() const { return snapshot_folder(path_); }
  std::filesystem::path summary() const { return path_ / "summary.json"; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
  Fd lock_;
};

// What keeps others off the run folder of a server by hand, as long as it lives.
struct ServerLocks {
  Fd index;
  std::vector<Fd> jobs;
};
// The folder is made when it is not there. Two that write the snapshots of one index would rename older ones over newer ones:
// another server of that index is kept off, and so is a job whose run folder this is, or whose snapshots lie here; servers of
// other indices are not. Errors: as RunFolder's.
ServerLocks lock_for_server(const std::filesystem::path& run_folder, int index);

// The log of one life of a process: "worker-1.err", "worker-1.restart-2.err".
std::filesystem::path log_file(const std::filesystem::path& folder, Target who, int life, Channel channel);

}  // namespace downpour::launch
