#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/base/version.h"
#include "csrc/transport/frame.h"

// Who speaks: exchanged before any other byte. Bodies are checked field by field.
namespace downpour::transport {

constexpr std::size_t kLargestHandshakeBytes = 4096;  // header and body of one frame
constexpr FrameLimits kHandshakeLimits{.body_bytes = kLargestHandshakeBytes - kFrameHeaderBytes, .window_bytes = 0};

enum class Role : std::uint8_t { kWorker = 1, kServer = 2, kRank = 3 };  // kRank: of a group of equals
std::string_view name(Role role);

struct Hello {
  std::uint16_t protocol = kProtocolVersion;
  std::string build{kVersion};  // of the sender, for messages only
  std::uint64_t job = 0;        // random per job: a stranger on a reused port is refused
  Role role = Role::kWorker;
  std::int32_t rank = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t schema = 0;  // Schema::hash(); 0 where none is agreed yet
  std::uint8_t wants_shared_memory = 0;
  std::vector<std::byte> auth;  // room for a key's proof; empty while jobs have no keys
  std::vector<std::byte> body;  // of the layer above
  bool operator==(const Hello&) const = default;
};

struct Offer {
  std::uint64_t nonce[2] = {0, 0};  // must be shown on the local socket: proof that both ends share the machine
  std::string socket_name;          // abstract AF_UNIX name
};

struct Claim {
  std::uint64_t nonce[2] = {0, 0};  // that of the offer
};

// How a reason begins that may be gone a moment later (the listener is short of something): worth another attempt.
constexpr std::string_view kLaterPrefix = "later: ";
struct Refusal {
  std::string reason;  // one line
};

struct Welcome {
  std::uint64_t to_acceptor_window_bytes = 0;   // what the connecting side may write
  std::uint64_t to_connector_window_bytes = 0;  // what the accepting side may write
  std::uint32_t credits = 0;                    // bulk messages the connecting side may have unreturned
  std::vector<std::byte> body;
};

// Errors: Error when the result would exceed kHandshakeLimits; only a Refusal is shortened instead.
std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Offer& offer);
std::vector<std::byte> encode(const Claim& claim);
std::vector<std::byte> encode(const Welcome& welcome);
std::vector<std::byte> encode(const Refusal& refusal);
// Errors: ProtocolError. A Hello of another protocol version is decoded as far as `protocol` and `build`, so that the
// refusal can name both versions.
Hello decode_hello(Bytes body);
Offer decode_offer(Bytes body);
Claim decode_claim(Bytes body);
Welcome decode_welcome(Bytes body);
Refusal decode_refusal(Bytes body);  // characters that would break a line of a log become '.'

// Header and body in one piece, ready to be sent, and the way back.
std::vector<std::byte> handshake_frame(FrameType type, Bytes body);
struct HandshakeFrame {
  FrameHeader header;
  Bytes body;  // points into what was decoded
  bool is(FrameType type) const { return header.type == static_cast<std::uint16_t>(type); }
};
HandshakeFrame decode_handshake_frame(Bytes bytes);  // Errors: ProtocolError for anything but one whole frame

}  // namespace downpour::transport
