#pragma once
// What this machine can do at most: the same copies and the same rule in as few instructions as possible, without protocol,
// finite check or replay. The peers of core_ps.cpp; both sides move 4 MB in pieces of 512 KiB, kDepth pushes under way.
#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <memory>
#include <new>

#include "csrc/base/aligned_bytes.h"
#include "csrc/ps/update_rule.h"
#include "csrc/transport/tcp.h"
#include "tests/bench/bench.h"

namespace downpour::bench {

constexpr std::int64_t kElements = 1 << 20;
constexpr std::int64_t kBytes = kElements * 4;
constexpr std::int64_t kPiece = 512 * 1024;
constexpr std::int64_t kPieceElements = kPiece / 4;
constexpr std::int64_t kPieces = kBytes / kPiece;
constexpr int kDepth = 8;

inline double gb_per_s(double bytes, double seconds) { return bytes / seconds / 1e9; }

// As a tensor's memory: cache lines.
using Floats = std::vector<float, CacheLineAllocator<float>>;

// A server's parameters.
struct Parameters {
  explicit Parameters(ps::RuleKind the_rule) : rule(the_rule), values(kElements, 1.0f), state(kElements, 0.1f) {
    hyper.lr = 1e-6;
  }
  void apply(std::int64_t begin, std::int64_t count, const void* gradient) {
    apply_rule(rule, hyper, Dtype::kFloat32, count, 1, values.data() + begin, gradient,
               {state.data() + begin, nullptr, nullptr});
  }
  ps::RuleKind rule;
  ps::Hyper hyper;
  Floats values, state;
};

// Memory that forked processes share: a T in the first page, bytes behind it.
template <typename T>
class SharedMemoryOf {
 public:
  explicit SharedMemoryOf(std::int64_t bytes) {
    static_assert(sizeof(T) <= 4096);
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes) + 4096, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    DOWNPOUR_CHECK(memory != MAP_FAILED, "mmap failed");
    head_ = new (memory) T;
    bytes_ = static_cast<std::byte*>(memory) + 4096;
  }
  T* operator->() { return head_; }
  std::byte* bytes() { return bytes_; }

 private:
  T* head_;
  std::byte* bytes_;
};

// Pushes between two processes that look at counters without ever sleeping: copy into a slot here, rule there.
class PushLimit {
 public:
  PushLimit(ps::RuleKind rule, int slots)
      : slots_(slots),
        gradient_(kElements, 1e-6f),
        shared_(slots * kBytes),
        child_([=, this](int socket) { serve(socket, rule); }) {}

  double round() {
    child_.ask<char>('p');
    const double begin = now_s();
    const std::int64_t first = shared_->produced.load(), end = first + kDepth * kPieces;
    for (std::int64_t i = first; i < end; ++i) {
      std::memcpy(piece(i), gradient_.data() + i % kPieces * kPieceElements, kPiece);
      shared_->produced.store(i + 1, std::memory_order_release);
    }
    while (shared_->consumed.load(std::memory_order_acquire) < end) {
    }
    return gb_per_s(kDepth * kBytes, now_s() - begin);
  }

 private:
  struct Counters {  // of pieces
    alignas(128) std::atomic<std::int64_t> produced{0};
    alignas(128) std::atomic<std::int64_t> consumed{0};
  };
  std::byte* piece(std::int64_t i) { return shared_.bytes() + i % (slots_ * kPieces) * kPiece; }

  void serve(int socket, ps::RuleKind rule) {
    Parameters parameters(rule);
    while (const char c = next_command(socket)) {
      const std::int64_t first = shared_->consumed.load();
      reply(socket, c);
      for (std::int64_t i = first; i < first + kDepth * kPieces; ++i) {
        while (shared_->produced.load(std::memory_order_acquire) <= i) {
        }
        parameters.apply(i % kPieces * kPieceElements, kPieceElements, piece(i));
        shared_->consumed.store(i + 1, std::memory_order_release);
      }
    }
  }

  std::int64_t slots_;
  Floats gradient_;
  SharedMemoryOf<Counters> shared_;
  Child child_;
};

// A counter that one process advances and another one awaits: it spins as long as ours does, then sleeps, since here three
// processes may share two processors.
class Counter {
 public:
  std::uint32_t get() const { return value_.load(std::memory_order_acquire); }
  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeps_.load(std::memory_order_seq_cst) != 0) {
      ::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
  }
  // Until it is another than `seen`.
  void wait_beyond(std::uint32_t seen) {
    for (const double end = now_s() + 50e-6; now_s() < end;) {
      if (get() != seen) {
        return;
      }
    }
    sleeps_.store(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) {
      ::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    }
    sleeps_.store(0, std::memory_order_relaxed);
  }
  void wait_until(std::uint32_t value) {
    for (std::uint32_t seen = get(); seen != value; seen = get()) {
      wait_beyond(seen);
    }
  }

 private:
  alignas(128) std::atomic<std::uint32_t> value_{0};
  alignas(128) std::atomic<std::uint32_t> sleeps_{0};
};

// Pulls of one version, copied into a window there and out of it here, while another process may push: one serving process
// with one thread, as ours; a push is applied as a whole, so that an answer is of one version.
class PullLimit {
 public:
  PullLimit() : shared_(2 * kBytes), values_(kElements, 1.0f), child_([this](int socket) { serve(socket); }) {
    child_.answer<char>();
  }

  double round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      shared_->pulls_asked.advance();
      shared_->work.advance();
      for (std::int64_t k = 0; k < kPieces; ++k) {
        ++pieces_seen_;
        for (std::uint32_t seen = shared_->pieces_answered.get(); behind(seen, pieces_seen_);) {
          shared_->pieces_answered.wait_beyond(seen);
          seen = shared_->pieces_answered.get();
        }
        std::memcpy(values_.data() + k * kPieceElements, window() + k * kPiece, kPiece);
      }
    }
    return gb_per_s(kDepth * kBytes, now_s() - begin);
  }

  // For a Competitor: one push, copied piece by piece and awaited.
  std::function<void()> pusher() {
    return [this, gradient = Floats(kElements, 1e-6f)] {
      const std::uint32_t acknowledged = shared_->pushes_applied.get();
      for (std::int64_t k = 0; k < kPieces; ++k) {
        std::memcpy(slot() + k * kPiece, gradient.data() + k * kPieceElements, kPiece);
        shared_->pieces_pushed.advance();
        shared_->work.advance();
      }
      shared_->pushes_applied.wait_until(acknowledged + 1);
    };
  }

 private:
  struct Counters {
    Counter work;  // something for the server
    Counter pulls_asked, pieces_answered, pieces_pushed, pushes_applied;
  };
  static bool behind(std::uint32_t value, std::uint32_t goal) { return static_cast<std::int32_t>(value - goal) < 0; }
  std::byte* slot() { return shared_.bytes(); }
  std::byte* window() { return shared_.bytes() + kBytes; }

  void serve(int socket) {
    Parameters parameters(ps::RuleKind::kSgd);
    reply(socket, 'r');
    for (std::uint32_t pulls = 0, pieces = 0;;) {
      const std::uint32_t seen = shared_->work.get();
      if (shared_->pulls_asked.get() != pulls) {
        ++pulls;
        for (std::int64_t k = 0; k < kPieces; ++k) {
          std::memcpy(window() + k * kPiece, parameters.values.data() + k * kPieceElements, kPiece);
          shared_->pieces_answered.advance();
        }
      } else if (shared_->pieces_pushed.get() != pieces) {
        if (++pieces % kPieces == 0) {
          parameters.apply(0, kElements, slot());
          shared_->pushes_applied.advance();
        }
      } else {
        shared_->work.wait_beyond(seen);
      }
    }
  }

  SharedMemoryOf<Counters> shared_;
  Floats values_;
  std::uint32_t pieces_seen_ = 0;
  Child child_;
};

// A raw loopback socket: blocking writes, blocking reads of whole pieces, the rule on arrival, one byte back for 4 MB.
class SocketLimit {
 public:
  explicit SocketLimit(ps::RuleKind rule)
      : gradient_(kElements, 1e-6f),
        values_(kElements, 1.0f),
        listening_(transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly)),
        child_([this, rule](int) { serve(rule); }),
        socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(transport::local_address(listening_.get()).port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    DOWNPOUR_CHECK(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
                   "connect failed");
    no_delay(socket_.get());
  }
  double push_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      send_all(socket_.get(), "p", 1);
      send_all(socket_.get(), gradient_.data(), kBytes);
    }
    char answers[kDepth];
    DOWNPOUR_CHECK(receive_all(socket_.get(), answers, kDepth), "the socket's other end is gone");
    return gb_per_s(kDepth * kBytes, now_s() - begin);
  }
  double pull_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      send_all(socket_.get(), "l", 1);
      DOWNPOUR_CHECK(receive_all(socket_.get(), values_.data(), kBytes), "the socket's other end is gone");
    }
    return gb_per_s(kDepth * kBytes, now_s() - begin);
  }

 private:
  static void no_delay(int fd) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }
  static void send_all(int fd, const void* data, std::int64_t count) {
    for (std::int64_t done = 0; done < count;) {
      const ssize_t n =
          ::send(fd, static_cast<const char*>(data) + done, static_cast<std::size_t>(count - done), MSG_NOSIGNAL);
      DOWNPOUR_CHECK(n > 0, "send failed");
      done += n;
    }
  }
  static bool receive_all(int fd, void* data, std::int64_t count) {
    for (std::int64_t done = 0; done < count;) {
      const ssize_t n = ::recv(fd, static_cast<char*>(data) + done, static_cast<std::size_t>(count - done), 0);
      if (n <= 0) {
        return false;
      }
      done += n;
    }
    return true;
  }
  // The socket comes non-blocking.
  int accept_one() const {
    pollfd wanted{listening_.get(), POLLIN, 0};
    DOWNPOUR_CHECK(::poll(&wanted, 1, 10000) == 1, "nobody connected");
    const int fd = ::accept(listening_.get(), nullptr, nullptr);
    DOWNPOUR_CHECK(fd >= 0, "accept failed");
    no_delay(fd);
    return fd;
  }
  void serve(ps::RuleKind rule) const {
    const Fd socket(accept_one());
    Floats staging(kElements);
    Parameters parameters(rule);
    for (char c = 0; receive_all(socket.get(), &c, 1);) {
      if (c == 'l') {
        send_all(socket.get(), parameters.values.data(), kBytes);
        continue;
      }
      for (std::int64_t at = 0; at < kElements; at += kPieceElements) {
        receive_all(socket.get(), staging.data() + at, kPiece);
        parameters.apply(at, kPieceElements, staging.data() + at);
      }
      send_all(socket.get(), "k", 1);
    }
  }

  Floats gradient_, values_;
  Fd listening_;
  Child child_;
  Fd socket_;
};

}  // namespace downpour::bench
