#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/random.h"
#include "csrc/transport/admission.h"
#include "csrc/transport/local_socket.h"
#include "csrc/transport/shm.h"
#include "csrc/transport/tcp.h"
#include "csrc/transport/tcp_connection.h"
#include "csrc/transport/tcp_socket.h"

namespace downpour::transport {
namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(100);   // after a failed accept: out of descriptors, mostly
constexpr Duration kLogWindow = std::chrono::seconds(10);
constexpr int kLogLinesPerWindow = 10;                              // a port scanner must not fill the disk

// A newcomer whose handshake is going on. Its TCP socket leads; over shared memory the local socket takes over.
struct Newcomer {
  enum class Stage { kHello, kOffered, kClaiming };

  Stage stage = Stage::kHello;
  Fd socket;
  HandshakeReader reader;
  Hello hello;
  Offer offer;
  Loop::TimerId deadline = 0;
};

struct Doorbells {
  Fd to_acceptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Fd to_connector{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

class TcpListener final : public Listener {
 public:
  TcpListener(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory, const ListenOptions& options);
  ~TcpListener() override;
  std::string address() const override { return local_address(socket_.get()).text(); }

 private:
  using Newcomers = std::list<Newcomer>;
  using Who = Newcomers::iterator;

  void accept_all(const Fd& listening, Newcomer::Stage stage);
  void welcome_newcomer(Fd socket, Newcomer::Stage stage);
  void pause();
  void update_watches();

  void on_newcomer(Who who);
  void on_hello(Who who, const HandshakeReader::Frame& frame);
  void on_claim(Who who);
  void make_offer(Who who);
  Who find_offer(const Claim& claim);
  void admit(Who who, Medium medium);
  void refuse(Who who, Medium medium, const std::string& reason);
  void open_tcp(Who who, Admission admission);
  void open_shm(Who who, Admission admission);
  void hand_over(const Admission& admission, std::function<std::unique_ptr<Connection>(Loop&)> make);
  void dismiss(Who who);
  void complain(const std::string& line);

  Loop& loop_;
  Fd socket_;
  Acceptor& acceptor_;
  SharedMemory shared_memory_;
  ListenOptions options_;
  LocalListener local_;
  Newcomers newcomers_;
  bool is_paused_ = false;
  Loop::TimerId pause_timer_ = 0;
  TimePoint log_window_{};
  int log_lines_ = 0;
};

TcpListener::TcpListener(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory, const ListenOptions& options)
    : loop_(loop), socket_(std::move(socket)), acceptor_(acceptor), shared_memory_(shared_memory), options_(options) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  if (shared_memory_ != SharedMemory::kNever) {
    local_ = listen_local();
    loop_.watch(local_.socket.get(), EPOLLIN, [this](std::uint32_t) { accept_all(local_.socket, Newcomer::Stage::kClaiming); });
  }
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { accept_all(socket_, Newcomer::Stage::kHello); });
}

TcpListener::~TcpListener() {
  while (!newcomers_.empty()) {
    dismiss(newcomers_.begin());
  }
  loop_.cancel(pause_timer_);
  loop_.unwatch(socket_.get());
  if (local_.socket) {
    loop_.unwatch(local_.socket.get());
  }
}

void TcpListener::accept_all(const Fd& listening, Newcomer::Stage stage) {
  while (newcomers_.size() < static_cast<std::size_t>(options_.pending_handshakes)) {
    Fd socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const bool is_drained = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
      return is_drained ? void() : pause();
    }
    welcome_newcomer(std::move(socket), stage);
  }
  update_watches();
}

void TcpListener::welcome_newcomer(Fd socket, Newcomer::Stage stage) {
  if (stage == Newcomer::Stage::kHello) {
    tune(socket.get());
  } else if (!is_same_user(socket.get())) {
    return complain("a process of another user at the local socket was turned away");
  }
  const Who who = newcomers_.emplace(newcomers_.end());
  who->stage = stage;
  who->socket = std::move(socket);
  who->deadline = loop_.call_at(loop_.now() + options_.handshake_deadline, [this, who] {
    complain(concat("a newcomer at ", address(), " did not finish its handshake within ", seconds(options_.handshake_deadline), " s"));
    dismiss(who);
  });
  loop_.watch(who->socket.get(), EPOLLIN, [this, who](std::uint32_t) { on_newcomer(who); });
}

void TcpListener::pause() {
  complain(concat("accepting at ", address(), " pauses: ", system_reason(errno)));
  is_paused_ = true;
  update_watches();
  pause_timer_ = loop_.call_at(loop_.now() + kAcceptPause, [this] {
    is_paused_ = false;
    update_watches();
  });
}

// Newcomers beyond the limit wait in the kernel's queue.
void TcpListener::update_watches() {
  const bool open = !is_paused_ && newcomers_.size() < static_cast<std::size_t>(options_.pending_handshakes);
  const std::uint32_t events = open ? static_cast<std::uint32_t>(EPOLLIN) : 0;
  loop_.change(socket_.get(), events);
  if (local_.socket) {
    loop_.change(local_.socket.get(), events);
  }
}

void TcpListener::on_newcomer(Who who) {
  try {
    if (who->stage == Newcomer::Stage::kClaiming) {
      return on_claim(who);
    }
    if (const auto frame = who->reader.read(who->socket.get())) {
      on_hello(who, *frame);
    }
  } catch (const CommError& error) {
    complain(concat("a newcomer at ", address(), " was turned away: ", error.what()));
    dismiss(who);
  }
}

void TcpListener::on_hello(Who who, const HandshakeReader::Frame& frame) {
  const bool offered = who->stage == Newcomer::Stage::kOffered;
  const FrameType expected = offered ? FrameType::kDecline : FrameType::kHello;
  DOWNPOUR_CHECK_AS(ProtocolError, frame.header.type == static_cast<std::uint16_t>(expected), "expected a frame of type ",
                    static_cast<int>(expected), " in the handshake, found ", frame.header.type);
  if (offered) {
    return admit(who, Medium::kTcp);
  }
  who->hello = decode_hello(frame.body);
  if (who->hello.protocol == kProtocolVersion && who->hello.wants_shared_memory != 0 && local_.socket) {
    return make_offer(who);
  }
  admit(who, Medium::kTcp);
}

void TcpListener::make_offer(Who who) {
  who->offer = {{system_random(), system_random()}, local_.name};
  who->stage = Newcomer::Stage::kOffered;
  send_handshake(who->socket.get(), FrameType::kOffer, encode(who->offer));
}

void TcpListener::on_claim(Who who) {
  const Received packet = receive_descriptors(who->socket.get(), kLargestHandshakeBytes, 0);
  DOWNPOUR_CHECK_AS(ProtocolError, packet.message.size() >= kFrameHeaderBytes, "a packet too short for a claim");
  const auto header = decode_header(std::span(packet.message).first<kFrameHeaderBytes>(), kHandshakeLimits);
  const Bytes body = Bytes(packet.message).subspan(kFrameHeaderBytes);
  DOWNPOUR_CHECK_AS(ProtocolError, header.type == static_cast<std::uint16_t>(FrameType::kClaim) && header.body_bytes == body.size(),
                    "expected a claim at the local socket, found a frame of type ", header.type);
  const Who claimed = find_offer(decode_claim(body));
  DOWNPOUR_CHECK_AS(ProtocolError, claimed != newcomers_.end(), "a claim to an offer that nobody was made");
  who->hello = std::move(claimed->hello);
  dismiss(claimed);
  admit(who, Medium::kSharedMemory);
}

TcpListener::Who TcpListener::find_offer(const Claim& claim) {
  for (Who who = newcomers_.begin(); who != newcomers_.end(); ++who) {
    if (who->stage == Newcomer::Stage::kOffered && who->offer.nonce[0] == claim.nonce[0] && who->offer.nonce[1] == claim.nonce[1]) {
      return who;
    }
  }
  return newcomers_.end();
}

void TcpListener::admit(Who who, Medium medium) {
  Admission admission = decide(acceptor_, who->hello, medium);
  if (!admission.accepted) {
    return refuse(who, medium, admission.reason);
  }
  medium == Medium::kTcp ? open_tcp(who, std::move(admission)) : open_shm(who, std::move(admission));
}

void TcpListener::refuse(Who who, Medium medium, const std::string& reason) {
  complain(concat(address(), " refused ", newcomer(who->hello, medium), ": ", reason));
  send_handshake(who->socket.get(), FrameType::kRefused, encode(Refusal{reason}));
  dismiss(who);
}

void TcpListener::open_tcp(Who who, Admission admission) {
  send_handshake(who->socket.get(), FrameType::kWelcome, encode(admission.welcome));
  Terms terms{Side::kAcceptor, who->hello, admission.welcome, admission.receiver, newcomer(who->hello, Medium::kTcp),
              admission.largest_body_bytes};
  loop_.unwatch(who->socket.get());
  auto socket = std::make_shared<Fd>(std::move(who->socket));   // shared only because std::function copies
  dismiss(who);
  hand_over(admission, [socket, terms](Loop& loop) { return std::make_unique<TcpConnection>(loop, std::move(*socket), terms); });
}

void TcpListener::open_shm(Who who, Admission admission) {
  Segment::Sizes sizes;
  sizes.to_acceptor_window_bytes = admission.welcome.to_acceptor_window_bytes;
  sizes.to_connector_window_bytes = admission.welcome.to_connector_window_bytes;
  auto segment = Segment::create(sizes);
  Doorbells bells;
  DOWNPOUR_CHECK_AS(CommError, bells.to_acceptor && bells.to_connector, "eventfd failed: ", system_reason(errno));
  const int descriptors[] = {segment->fd(), bells.to_connector.get(), bells.to_acceptor.get()};
  send_descriptors(who->socket.get(), handshake_frame(FrameType::kWelcome, encode(admission.welcome)), descriptors);
  loop_.unwatch(who->socket.get());
  auto end = std::make_shared<ShmEnd>();   // shared only because std::function copies
  *end = {Side::kAcceptor, std::move(who->socket), std::move(segment), std::move(bells.to_acceptor), std::move(bells.to_connector)};
  const Hello hello = who->hello;
  dismiss(who);
  hand_over(admission, [end, hello, admission](Loop& loop) {
    return make_shm_connection(loop, std::move(*end), hello, admission.welcome, *admission.receiver,
                               newcomer(hello, Medium::kSharedMemory), admission.largest_body_bytes);
  });
}

void TcpListener::hand_over(const Admission& admission, std::function<std::unique_ptr<Connection>(Loop&)> make) {
  if (admission.loop == nullptr || admission.loop == &loop_) {
    return acceptor_.on_connection(make(loop_));
  }
  Loop& target = *admission.loop;
  target.post([&target, &acceptor = acceptor_, make = std::move(make)] { acceptor.on_connection(make(target)); });
}

void TcpListener::dismiss(Who who) {
  loop_.cancel(who->deadline);
  if (who->socket) {
    loop_.unwatch(who->socket.get());
  }
  newcomers_.erase(who);
  update_watches();
}

void TcpListener::complain(const std::string& line) {
  if (loop_.now() >= log_window_ + kLogWindow) {
    log_window_ = loop_.now();
    log_lines_ = 0;
  }
  if (++log_lines_ <= kLogLinesPerWindow) {
    log_warning(line, log_lines_ == kLogLinesPerWindow ? " (more of this is not shown for some seconds)" : "");
  }
}

}  // namespace

std::unique_ptr<Listener> listen_tcp(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory, Exposure exposure,
                                     const ListenOptions& options) {
  resolve(local_address(socket.get()), exposure);   // for its check of the exposure
  return std::make_unique<TcpListener>(loop, std::move(socket), acceptor, shared_memory, options);
}

}  // namespace downpour::transport
