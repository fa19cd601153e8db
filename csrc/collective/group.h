#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/collective/bulletin.h"
#include "csrc/collective/call.h"
#include "csrc/collective/operation.h"
#include "csrc/transport/tcp.h"

namespace downpour::collective {

struct GroupOptions {
  int rank = 0;
  int world = 1;
  std::string host = "127.0.0.1";  // where this rank listens, and the others reach it
  transport::SharedMemory shared_memory = transport::SharedMemory::kAuto;
  // Ranks that name different ones never share memory, also where they could: the form between machines can be tried on one.
  std::string machine;
  bool insecure = false;                               // off loopback without a key
  Duration join_deadline = std::chrono::seconds(300);  // for all ranks to arrive
  Duration heartbeat = std::chrono::milliseconds(100);
  Duration warn_after = std::chrono::seconds(2);
  Duration silence = std::chrono::seconds(10);  // a rank that is not heard for so long is lost
};

// The ranks of a job, or some of them, as one of them sees it: collective calls and messages. Inside a machine calls go through memory
// that all its ranks share, between machines over TCP; which it is was proved when the group was formed, and is the same for all.
//
// Calls are done in the order in which they were begun, which must be the same on every rank; messages go beside them. The memory of a
// call or message must live, and not be touched, until it is done.
// Threads: any; calls of one thread keep their order. It has a thread for the links and one for calls that nobody waits for in
// person. What follows an operation (Operation::then) may begin() calls and messages, and not wait for them.
// Errors: Error for the caller's mistake before any effect, for a disagreement among ranks that all share a machine, and for use in a
// forked child; CommError when a rank is lost, stops, or a deadline passes: that breaks the group, every later use throws the same, and
// what remains of it (arenas) is this process's own memory. Other groups are not touched.
class Group {
  struct State;

 public:
  // Blocks: until all ranks have come, or join_deadline. Errors: TimeoutError naming the ranks that are missing; ProtocolError when
  // another process claims this rank, or has another build; CommError.
  static std::unique_ptr<Group> form(Bulletin& bulletin, const GroupOptions& options);
  // Ends the threads; what is under way fails. The others hear that this rank has ended its group. Blocks: two seconds at most, until
  // they have what was sent; not at all on a thread of its own (in what follows an operation), where another thread ends it.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int world() const;
  std::string medium() const;  // "shm", "tcp", "shm and tcp": for messages

  // Does the call before it returns, on this thread when nothing else is under way. `timeout`: from now on.
  void run(const Call& call, Duration timeout);
  // Returns at once; the timeout runs from the call's turn on.
  std::shared_ptr<Operation> begin(const Call& call, Duration timeout);

  // Several calls as one, with what has to be done before and after them on the same thread: no other call comes in between. What the
  // work throws ends it, and leaves run() or is the operation's error; of itself it does not break the group.
  class Turn {
   public:
    void run(const Call& call, Duration timeout);  // checked, then as above

   private:
    friend struct Group::State;
    explicit Turn(State& state) : state_(state) {}
    State& state_;
  };
  void run(const std::function<void(Turn& turn)>& work);
  std::shared_ptr<Operation> begin(std::function<void(Turn& turn)> work);

  static constexpr int kAnyRank = -1;
  std::shared_ptr<Operation> send(int to, int tag, Bytes bytes);
  std::shared_ptr<Operation> receive(int from, int tag, MutableBytes bytes);

  // Memory for tensors that an all-reduce reduces where they lie, where all ranks share a machine; elsewhere ordinary memory. Every rank
  // calls it with the same size, in the same order among calls; aligned to a page. It lives until the last owner lets go of it; the
  // group is one of them. Blocks, Errors: as a call.
  std::shared_ptr<std::byte> allocate(std::int64_t bytes, Duration timeout);

  // Ends it for all: every rank's calls and messages fail with the reason. Never blocks.
  void abort(const std::string& reason);
  std::exception_ptr error() const;  // why it is broken; nullptr: it is not
  std::uint64_t calls() const;       // begun so far

 private:
  explicit Group(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace downpour::collective
