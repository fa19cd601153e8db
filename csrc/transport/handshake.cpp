#include "csrc/transport/handshake.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

constexpr std::size_t kLargestBuildBytes = 128;
constexpr std::size_t kLargestReasonBytes = 1024;
constexpr std::size_t kLargestSocketNameBytes = 107;  // sun_path without the leading zero of an abstract name

bool is_printable(char character) { return character >= ' ' && character <= '~'; }

// Text from a stranger ends up in logs and terminals.
void check_text(std::string_view text, std::size_t largest_bytes, std::string_view what) {
  DOWNPOUR_CHECK_AS(ProtocolError, text.size() <= largest_bytes, what, " of ", text.size(), " bytes; the limit is ",
                    largest_bytes);
  DOWNPOUR_CHECK_AS(ProtocolError, std::ranges::all_of(text, is_printable), what,
                    " has characters that are not printable");
}

std::vector<std::byte> checked(Writer& writer, std::string_view what) {
  DOWNPOUR_CHECK(writer.bytes().size() <= kHandshakeLimits.body_bytes, what, " of ", writer.bytes().size(),
                 " bytes does not fit the handshake; the limit is ", kHandshakeLimits.body_bytes);
  return writer.take();
}

std::vector<std::byte> to_vector(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

std::uint8_t get_flag(Reader& reader, std::string_view what) {
  const auto flag = reader.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, flag <= 1, what, ": expected 0 or 1, found ", int{flag});
  return flag;
}

Role get_role(Reader& reader) {
  const auto role = reader.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, role >= 1 && role <= 3, "hello: ", int{role}, " is no role (1 to 3)");
  return static_cast<Role>(role);
}

void read_identity(Reader& reader, Hello& hello) {
  hello.job = reader.get<std::uint64_t>();
  hello.role = get_role(reader);
  hello.rank = reader.get<std::int32_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, hello.rank >= 0, "hello: rank ", hello.rank, " is negative");
  hello.incarnation = reader.get<std::uint32_t>();
  hello.schema = reader.get<std::uint64_t>();
}

}  // namespace

std::string_view name(Role role) {
  switch (role) {
    case Role::kWorker: return "worker";
    case Role::kServer: return "server";
    case Role::kRank: return "rank";
  }
  return "unknown role";
}

std::vector<std::byte> encode(const Hello& hello) {
  DOWNPOUR_CHECK(hello.build.size() <= kLargestBuildBytes && std::ranges::all_of(hello.build, is_printable),
                 "hello: a build name of ", hello.build.size(), " bytes; expected at most ", kLargestBuildBytes,
                 " printable ones");
  DOWNPOUR_CHECK(hello.rank >= 0, "hello: rank ", hello.rank, " is negative");
  Writer writer;
  writer.put(hello.protocol).put_string(hello.build).put(hello.job).put(hello.role).put(hello.rank);
  writer.put(hello.incarnation).put(hello.schema).put(hello.wants_shared_memory);
  writer.put_bytes(hello.auth).put_bytes(hello.body);
  return checked(writer, "hello");
}

std::vector<std::byte> encode(const Offer& offer) {
  Writer writer;
  writer.put(offer.nonce).put_string(offer.socket_name);
  return checked(writer, "offer");
}

std::vector<std::byte> encode(const Claim& claim) {
  Writer writer;
  writer.put(claim.nonce);
  return checked(writer, "claim");
}

std::vector<std::byte> encode(const Welcome& welcome) {
  Writer writer;
  writer.put(welcome.to_acceptor_window_bytes).put(welcome.to_connector_window_bytes).put(welcome.credits);
  writer.put_bytes(welcome.body);
  return checked(writer, "welcome");
}

std::vector<std::byte> encode(const Refusal& refusal) {
  Writer writer;
  writer.put_string(std::string_view(refusal.reason).substr(0, kLargestReasonBytes));
  return checked(writer, "refusal");
}

Hello decode_hello(Bytes body) {
  Reader reader(body, "hello");
  Hello hello;
  hello.protocol = reader.get<std::uint16_t>();
  hello.build = reader.get_string();
  check_text(hello.build, kLargestBuildBytes, "hello: a build name");
  if (hello.protocol != kProtocolVersion) {
    return hello;
  }
  read_identity(reader, hello);
  hello.wants_shared_memory = get_flag(reader, "hello: wants shared memory");
  hello.auth = to_vector(reader.get_bytes());
  hello.body = to_vector(reader.get_bytes());
  reader.finish();
  return hello;
}

Offer decode_offer(Bytes body) {
  Reader reader(body, "offer");
  Offer offer;
  offer.nonce[0] = reader.get<std::uint64_t>();
  offer.nonce[1] = reader.get<std::uint64_t>();
  offer.socket_name = reader.get_string();
  check_text(offer.socket_name, kLargestSocketNameBytes, "offer: a socket name");
  DOWNPOUR_CHECK_AS(ProtocolError, !offer.socket_name.empty(), "offer: an empty socket name");
  reader.finish();
  return offer;
}

Claim decode_claim(Bytes body) {
  Reader reader(body, "claim");
  Claim claim;
  claim.nonce[0] = reader.get<std::uint64_t>();
  claim.nonce[1] = reader.get<std::uint64_t>();
  reader.finish();
  return claim;
}

Welcome decode_welcome(Bytes body) {
  Reader reader(body, "welcome");
  Welcome welcome;
  welcome.to_acceptor_window_bytes = reader.get<std::uint64_t>();
  welcome.to_connector_window_bytes = reader.get<std::uint64_t>();
  welcome.credits = reader.get<std::uint32_t>();
  welcome.body = to_vector(reader.get_bytes());
  reader.finish();
  return welcome;
}

Refusal decode_refusal(Bytes body) {
  Reader reader(body, "refusal");
  Refusal refusal{reader.get_string()};
  reader.finish();
  std::ranges::replace_if(
      refusal.reason, [](char character) { return !is_printable(character); }, '.');
  return refusal;
}

std::vector<std::byte> handshake_frame(FrameType type, Bytes body) {
  std::vector<std::byte> frame(kFrameHeaderBytes + body.size());
  const FrameHeader header{.type = static_cast<std::uint16_t>(type),
                           .body_bytes = static_cast<std::uint32_t>(body.size())};
  encode_header(header, std::span(frame).first<kFrameHeaderBytes>());
  std::ranges::copy(body, frame.begin() + kFrameHeaderBytes);
  return frame;
}

HandshakeFrame decode_handshake_frame(Bytes bytes) {
  DOWNPOUR_CHECK_AS(ProtocolError, bytes.size() >= kFrameHeaderBytes, "a handshake frame of ", bytes.size(),
                    " bytes, shorter than its header");
  const HandshakeFrame frame{decode_header(bytes.first<kFrameHeaderBytes>(), kHandshakeLimits),
                             bytes.subspan(kFrameHeaderBytes)};
  DOWNPOUR_CHECK_AS(ProtocolError, frame.header.body_bytes == frame.body.size(),
                    "a handshake frame announces a body of ", frame.header.body_bytes, " bytes and has ",
                    frame.body.size());
  return frame;
}

}  // namespace downpour::transport
