#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/own_stall.h"
#include "csrc/ps/member.h"
#include "csrc/transport/connection.h"
#include "csrc/transport/loop.h"
#include "csrc/transport/tcp.h"

namespace downpour::ps {

// The two directions between a Member's callers and its thread. Everything is guarded by `mutex`; `changed` is notified whenever
// something was heard, and every heartbeat.
struct MemberBoard {
  enum class Phase : std::uint8_t { kJoining, kLive, kFenced, kFailed };

  std::mutex mutex;
  std::condition_variable changed;

  // heard
  Phase phase = Phase::kJoining;
  std::uint64_t life = 0;       // grows at each rejoin
  std::function<void()> raise;  // kFailed: throws the first failure anew, so that no thread shares an exception
  Joined joined;
  MinimumClock minimum;
  TimePoint others_progressed{};  // as of the last MinimumClock
  bool agreed = false;
  std::optional<std::string> refused;
  std::optional<Leases> leases;
  bool finished = false;

  // the thread's own time
  TimePoint turned{};      // its last heartbeat
  Duration stood_still{};  // time for which this process was stopped, summed

  // to send
  Progress progress;
  bool tick_waits = false;
  bool ticks_at_once = false;    // the agreement uses the clock
  std::int64_t step = 0;         // of the last tick
  std::int64_t first_step = 0;   // `step` when this life began...
  std::int64_t first_clock = 0;  // ... and what the coordinator counts it as
  LeasesDone done;
  std::optional<std::vector<std::byte>> offer;
  int lease_count = 0;  // > 0: ask for so many
  bool ask_finish = false;

  std::int64_t clock_of(std::int64_t steps) const { return first_clock + (steps - first_step); }
  void begin_at(std::int64_t clock) {
    first_step = step;
    first_clock = clock;
  }
  void begin_at_least(std::int64_t clock) { begin_at(std::max(clock, clock_of(step))); }
};

// A Member's thread: owns the loop and the connection to the coordinator, beats, keeps the board.
class MemberLink final : public transport::Receiver {
 public:
  explicit MemberLink(const MemberOptions& options);  // starts the thread
  ~MemberLink() override;                             // says goodbye, ends it

  MemberBoard& board() { return board_; }
  const std::string& name() const { return name_; }  // "worker 1"
  const std::string& coordinator() const { return options_.coordinator; }

  // Any thread; return at once.
  void join();   // the board says kJoining until it is kLive or kFailed
  void flush();  // sends what the board has to send

  void on_open(transport::Connection& connection, const transport::Welcome& welcome) override;
  void on_message(transport::Connection& connection, const transport::Message& message) override;
  void on_closed(transport::Connection& connection, std::exception_ptr why) override;

 private:
  void run();
  void connect();
  void turn();
  void notice_own_stall(TimePoint now);
  void look_for_silence(TimePoint now);
  void send_waiting();
  void say_last_words();
  template <typename Body>
  void send(MessageType type, const Body& body);
  void send_encoded(MessageType type, Bytes body);
  void hear(const transport::Message& message);
  void hear_minimum(const MinimumClock& minimum);
  void hear_fence(const Fence& fence);
  void fail(std::function<void()> raise);
  void fail_as(const std::exception_ptr& why, const std::string& prefix);

  const MemberOptions options_;
  const std::string name_;
  MemberBoard board_;
  const SteadyClock clock_;
  transport::Loop loop_;
  std::optional<transport::Endpoint> endpoint_;  // the coordinator's, looked up once
  std::unique_ptr<transport::Connection> connection_;
  bool stopping_ = false;  // the thread's
  bool warned_ = false;
  OwnStall stall_;
  TimePoint woke_{};  // silence counts from then on
  Writer writer_;
  LeasesDone sending_;
  std::thread thread_;
};

}  // namespace downpour::ps
