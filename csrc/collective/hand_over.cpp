#include "csrc/collective/hand_over.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>

#include "csrc/base/bytes.h"
#include "csrc/base/error.h"
#include "csrc/base/random.h"
#include "csrc/base/system_call.h"
#include "csrc/base/text.h"
#include "csrc/transport/descriptors.h"

namespace downpour::collective {
namespace {

// Of one who came and says nothing: the others wait behind.
constexpr Duration kPatience = std::chrono::seconds(1);
constexpr Duration kLongestLook = std::chrono::seconds(1);
constexpr std::size_t kWordDigits = 16;

using Secret = std::array<std::uint64_t, 2>;
constexpr std::size_t kSecretDigits = 2 * kWordDigits;

// False at the deadline.
bool wait_readable(int socket, TimePoint deadline, const LookUp& look_up) {
  pollfd watched{socket, POLLIN, 0};
  for (;;) {
    look_up();
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) {
      return false;
    }
    const auto look = std::chrono::ceil<std::chrono::milliseconds>(std::min(left, kLongestLook));
    const int found = poll(&watched, 1, static_cast<int>(look.count()));
    DOWNPOUR_CHECK_AS(CommError, found >= 0 || errno == EINTR, "waiting at a local socket: ", system_reason());
    if (found > 0) {
      return true;
    }
  }
}

std::optional<std::uint64_t> parse_word(std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(value) : std::nullopt;
}

Secret secret_of(std::string_view ticket) {
  DOWNPOUR_CHECK_AS(ProtocolError, ticket.size() > kSecretDigits, "a ticket for shared memory: expected more than ",
                    kSecretDigits, " characters, found ", ticket.size());
  const auto first = parse_word(ticket.substr(0, kWordDigits));
  const auto second = parse_word(ticket.substr(kWordDigits, kWordDigits));
  DOWNPOUR_CHECK_AS(ProtocolError, first && second, "a ticket for shared memory: expected ", kSecretDigits,
                    " hexadecimal digits, found '", ticket.substr(0, kSecretDigits), "'");
  return {*first, *second};
}

}  // namespace

MemoryOffer::MemoryOffer() : listener_(transport::listen_local()), secret_{system_random(), system_random()} {}

std::string MemoryOffer::ticket() const {
  return concat(hexadecimal(secret_[0]), hexadecimal(secret_[1]), listener_.name);
}

void MemoryOffer::hand_over(int memory, int takers, TimePoint deadline, const LookUp& look_up) {
  for (int served = 0; served < takers;) {
    DOWNPOUR_CHECK_AS(TimeoutError, wait_readable(listener_.socket.get(), deadline, look_up),
                      "handing shared memory to the other ranks of this machine: expected ", takers, ", found ", served,
                      " in time");
    served += serve_one(memory, deadline) ? 1 : 0;
  }
}

// False for a stranger, and for one who does not say who it is: if it belongs here, it comes again or is missed.
bool MemoryOffer::serve_one(int memory, TimePoint deadline) {
  const Fd socket(uninterrupted([&] { return ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
  const bool is_gone_again = !socket && (errno == EAGAIN || errno == ECONNABORTED);
  DOWNPOUR_CHECK_AS(CommError, socket || is_gone_again, "letting in a rank for shared memory: ", system_reason());
  if (!socket || !transport::is_same_user(socket.get())) {
    return false;
  }
  try {
    const TimePoint limit = std::min(deadline, std::chrono::steady_clock::now() + kPatience);
    Secret shown{};
    if (!wait_readable(socket.get(), limit, [] {}) ||
        ::recv(socket.get(), shown.data(), sizeof(shown), MSG_DONTWAIT) != sizeof(shown) || shown != secret_) {
      return false;
    }
    transport::send_descriptors(socket.get(), std::as_bytes(std::span(shown)), std::span(&memory, 1));
    return true;
  } catch (const CommError&) {
    return false;
  }
}

Fd take_memory(const std::string& ticket, TimePoint deadline, const LookUp& look_up) {
  const Secret secret = secret_of(ticket);
  const Fd socket = transport::connect_local(ticket.substr(kSecretDigits));
  DOWNPOUR_CHECK_AS(PeerLostError, socket, "the rank that offered shared memory is gone");
  const ssize_t sent = uninterrupted([&] { return ::send(socket.get(), secret.data(), sizeof(secret), MSG_NOSIGNAL); });
  DOWNPOUR_CHECK_AS(CommError, sent == sizeof(secret), "asking another rank for shared memory: ", system_reason());
  DOWNPOUR_CHECK_AS(TimeoutError, wait_readable(socket.get(), deadline, look_up),
                    "another rank offered shared memory and did not hand it over in time");
  transport::Received received = transport::receive_descriptors(socket.get(), sizeof(secret), 1);
  DOWNPOUR_CHECK_AS(ProtocolError, received.descriptors.size() == 1, "shared memory without a descriptor");
  return std::move(received.descriptors.front());
}

}  // namespace downpour::collective
