#include "csrc/transport/descriptors.h"

#include <sys/socket.h>

#include "csrc/base/error.h"
#include "csrc/base/system_call.h"

namespace downpour::transport {
namespace {

// More than the kernel passes at once.
constexpr std::size_t kMostDescriptors = 16;
constexpr std::size_t kControlBytes = CMSG_SPACE(kMostDescriptors * sizeof(int));

// Takes all descriptors out of `header`, so that whatever is wrong with them they are closed.
std::vector<Fd> take_descriptors(msghdr& header) {
  std::vector<Fd> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

void send_descriptors(int socket, Bytes message, std::span<const int> descriptors) {
  DOWNPOUR_CHECK(!message.empty() && descriptors.size() <= kMostDescriptors, "passing ", descriptors.size(),
                 " descriptors with ", message.size(), " bytes: expected at most ", kMostDescriptors,
                 " and at least one byte");
  alignas(cmsghdr) std::byte control[kControlBytes] = {};
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  const ssize_t sent = uninterrupted([&] { return ::sendmsg(socket, &header, MSG_NOSIGNAL); });
  DOWNPOUR_CHECK_AS(CommError, sent >= 0, "passing descriptors over the local socket: ", system_reason());
  DOWNPOUR_CHECK_AS(CommError, static_cast<std::size_t>(sent) == message.size(), "the local socket took ", sent, " of ",
                    message.size(), " bytes");
}

Received receive_descriptors(int socket, std::size_t largest_message_bytes, std::size_t largest_count) {
  DOWNPOUR_CHECK(largest_count <= kMostDescriptors, "expecting ", largest_count, " descriptors: at most ",
                 kMostDescriptors);
  alignas(cmsghdr) std::byte control[kControlBytes] = {};
  Received received;
  received.message.resize(largest_message_bytes);
  iovec part{received.message.data(), received.message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(largest_count * sizeof(int));
  const ssize_t got = uninterrupted([&] { return ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC); });
  DOWNPOUR_CHECK_AS(CommError, got >= 0, "receiving descriptors over the local socket: ", system_reason());
  received.descriptors = take_descriptors(header);
  DOWNPOUR_CHECK_AS(PeerLostError, got > 0, "the local socket was closed before the descriptors came");
  const bool complete =
      (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && received.descriptors.size() <= largest_count;
  DOWNPOUR_CHECK_AS(ProtocolError, complete, "the local socket: expected at most ", largest_message_bytes,
                    " bytes and ", largest_count, " descriptors, found more");
  received.message.resize(static_cast<std::size_t>(got));
  return received;
}

}  // namespace downpour::transport
