#include "csrc/transport/inproc.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/transport/admission.h"
#include "csrc/transport/connector.h"
#include "csrc/transport/framed_connection.h"
#include "csrc/transport/inproc_link.h"
#include "csrc/transport/window.h"

namespace downpour::transport {
namespace {

class InprocConnection final : public FramedConnection, public LinkEnd {
 public:
  InprocConnection(Loop* loop, std::shared_ptr<Link> link, Window window, Terms terms)
      : FramedConnection(loop, std::move(terms)), link_(std::move(link)), window_(std::move(window)) {
    link_->ends[towards_us()] = this;
  }
  ~InprocConnection() override { close(); }

  Medium medium() const override { return Medium::kInproc; }
  MutableBytes outgoing() override { return {}; }
  MutableBytes incoming() override { return window_.bytes(); }
  void keep_bulk() override { link_->lanes[1 - towards_us()].keep_bulk(); }
  bool idle() const override { return link_->lanes[1 - towards_us()].waiting() == 0; }

  FrameLimits limits() const override { return terms().incoming_limits(); }
  MutableBytes window() override { return window_.bytes(); }
  void receive(const FrameHeader& header, Bytes body) override {
    heard();
    dispatch(header, body);
  }
  void lose(std::exception_ptr why) override { fail(std::move(why)); }

 private:
  std::size_t towards_us() const { return terms().side == Side::kAcceptor ? kToAcceptor : kToConnector; }
  void transmit(const FrameHeader& header, Bytes body, Bytes bulk) override;
  void flush() override { transmit_credits(); }
  void end() override { said_goodbye() ? link_->leave(towards_us()) : link_->break_off(towards_us()); }

  std::shared_ptr<Link> link_;  // shared with the network and the other end: whoever dies last
  Window window_;
};

void InprocConnection::transmit(const FrameHeader& header, Bytes body, Bytes bulk) {
  if (link_->ends[1 - towards_us()] == nullptr) {
    return;
  }
  Parcel& parcel = link_->lanes[1 - towards_us()].push();
  parcel.small.resize(kFrameHeaderBytes);
  encode_header(header, std::span(parcel.small).first<kFrameHeaderBytes>());
  parcel.small.insert(parcel.small.end(), body.begin(), body.end());
  parcel.bulk = bulk;
}

class InprocConnector final : public Connector, public LinkEnd {
 public:
  InprocConnector(Loop* loop, std::shared_ptr<Link> link, const Hello& hello, Receiver& receiver,
                  const ConnectOptions& options)
      : Connector(hello, receiver, concat(options.peer, " at ", link->name), options),
        loop_(loop),
        link_(std::move(link)) {
    link_->ends[kToConnector] = this;
  }
  ~InprocConnector() override { close(); }

  Medium medium() const override { return Medium::kInproc; }
  FrameLimits limits() const override { return kHandshakeLimits; }
  MutableBytes window() override { return {}; }
  void receive(const FrameHeader& header, Bytes body) override;
  void lose(std::exception_ptr why) override { fail(std::move(why)); }

 private:
  void abandon() override;

  Loop* loop_;
  std::shared_ptr<Link> link_;
};

void InprocConnector::receive(const FrameHeader& header, Bytes body) {
  Welcome welcome;
  std::unique_ptr<Connection> medium;
  try {
    welcome = welcome_of(header, body);
    Terms terms{Side::kConnector, hello(), welcome, &front(), peer() + " (inproc)", options().largest_body_bytes};
    Window window(terms.incoming_window_bytes());
    medium = std::make_unique<InprocConnection>(loop_, link_, std::move(window), std::move(terms));
  } catch (const ProtocolError& error) {
    return fail(std::make_exception_ptr(ProtocolError(concat(peer(), " (inproc): ", error.what()))));
  } catch (const CommError& error) {
    return fail(std::make_exception_ptr(CommError(concat(peer(), " (inproc): ", error.what()))));
  }
  open(std::move(medium), welcome);
}

void InprocConnector::abandon() {
  if (link_->ends[kToConnector] == this) {
    link_->leave(kToConnector);
    link_->send(kToAcceptor, FrameType::kGoodbye, {});
  }
}

}  // namespace

struct InprocNetwork::State {
  bool deliver(int index, int direction);
  bool deliver_part(Link& link, std::size_t direction, const Parcel& parcel);
  void deliver_whole(const std::shared_ptr<Link>& link, std::size_t direction, const Parcel& parcel);
  void meet_acceptor(const std::shared_ptr<Link>& link, Bytes body);
  void admit(const std::shared_ptr<Link>& link, const Hello& hello, Acceptor& acceptor);
  void cut(Link& link);
  Lane& lane(int link, int direction);

  Loop* loop = nullptr;
  std::map<std::string, Acceptor*> acceptors;
  std::set<std::string> refused;
  std::vector<std::shared_ptr<Link>> links;
};

Lane& InprocNetwork::State::lane(int link, int direction) {
  DOWNPOUR_CHECK(link >= 0 && static_cast<std::size_t>(link) < links.size() && (direction == 0 || direction == 1),
                 "there is no link ", link, " with direction ", direction, "; links: ", links.size(),
                 ", directions: 0 and 1");
  return links[static_cast<std::size_t>(link)]->lanes[static_cast<std::size_t>(direction)];
}

bool InprocNetwork::State::deliver(int index, int direction) {
  Lane& lane = this->lane(index, direction);
  if (lane.waiting() == 0) {
    return false;
  }
  const std::shared_ptr<Link> link = links[static_cast<std::size_t>(index)];
  Parcel parcel = lane.pop();
  if (deliver_part(*link, static_cast<std::size_t>(direction), parcel)) {
    deliver_whole(link, static_cast<std::size_t>(direction), parcel);
    if (lane.bytes_until_cut == 0u) {
      cut(*link);
    }
  }
  lane.recycle(std::move(parcel));
  return true;
}

// Counts down to a cut. False when it falls into this parcel: then only the first of its bulk bytes arrive.
bool InprocNetwork::State::deliver_part(Link& link, std::size_t direction, const Parcel& parcel) {
  auto& left = link.lanes[direction].bytes_until_cut;
  if (!left) {
    return true;
  }
  if (*left >= parcel.bytes()) {
    *left -= parcel.bytes();
    return true;
  }
  LinkEnd* end = link.ends[direction];
  if (end != nullptr && *left > parcel.small.size()) {
    const auto header = decode_header(std::span(parcel.small).first<kFrameHeaderBytes>(), end->limits());
    std::ranges::copy(parcel.bulk.first(*left - parcel.small.size()),
                      end->window().subspan(header.bulk_offset).begin());
  }
  cut(link);
  return false;
}

void InprocNetwork::State::deliver_whole(const std::shared_ptr<Link>& link, std::size_t direction,
                                         const Parcel& parcel) {
  LinkEnd* end = link->ends[direction];
  if (parcel.is_end_of_file()) {
    return end != nullptr ? end->lose(std::make_exception_ptr(PeerLostError(concat(
                                "the other end of the link to ", link->name, " (inproc) closed without a goodbye"))))
                          : void();
  }
  const Bytes body = Bytes(parcel.small).subspan(kFrameHeaderBytes);
  if (end == nullptr) {
    if (direction == kToAcceptor && !std::exchange(link->has_met_acceptor, true)) {
      meet_acceptor(link, body);
    }
    return;
  }
  FrameHeader header;
  try {
    header = decode_header(std::span(parcel.small).first<kFrameHeaderBytes>(), end->limits());
  } catch (const ProtocolError&) {
    return end->lose(std::current_exception());
  }
  if (!parcel.bulk.empty()) {
    std::ranges::copy(parcel.bulk, end->window().subspan(header.bulk_offset).begin());
  }
  end->receive(header, body);
}

void InprocNetwork::State::meet_acceptor(const std::shared_ptr<Link>& link, Bytes body) {
  const auto found = acceptors.find(link->name);
  if (found != acceptors.end() && !refused.contains(link->name)) {
    return admit(link, decode_hello(body), *found->second);
  }
  if (LinkEnd* end = link->ends[kToConnector]) {
    end->lose(std::make_exception_ptr(TimeoutError(concat("nobody listens at ", link->name, " (inproc)"))));
  }
}

void InprocNetwork::State::admit(const std::shared_ptr<Link>& link, const Hello& hello, Acceptor& acceptor) {
  Admission admission = decide(acceptor, hello, Medium::kInproc);
  Window window = admission.accepted ? window_of(admission) : Window();
  if (!admission.accepted) {
    log_warning(link->name, " refused ", newcomer(hello, Medium::kInproc), ": ", admission.reason);
    return link->send(kToConnector, FrameType::kRefused, encode(Refusal{admission.reason}));
  }
  Terms terms{Side::kAcceptor,
              hello,
              admission.welcome,
              admission.receiver,
              newcomer(hello, Medium::kInproc),
              admission.largest_body_bytes};
  auto connection = std::make_unique<InprocConnection>(loop, link, std::move(window), std::move(terms));
  link->send(kToConnector, FrameType::kWelcome, encode(admission.welcome));
  acceptor.on_connection(std::move(connection));
}

void InprocNetwork::State::cut(Link& link) {
  const std::string why = concat("the link to ", link.name, " (inproc) was cut");
  for (Lane& lane : link.lanes) {
    lane.clear();
    lane.bytes_until_cut.reset();
  }
  link.has_met_acceptor = true;
  for (const std::size_t direction : {kToAcceptor, kToConnector}) {
    if (LinkEnd* end = link.ends[direction]) {
      end->lose(std::make_exception_ptr(PeerLostError(why)));
    }
  }
  for (Lane& lane : link.lanes) {
    lane.clear();
  }
}

namespace {

class InprocListener final : public Listener {
 public:
  InprocListener(std::string name, std::function<void()> stop) : name_(std::move(name)), stop_(std::move(stop)) {}
  ~InprocListener() override { stop_(); }
  std::string address() const override { return name_; }

 private:
  std::string name_;
  std::function<void()> stop_;
};

}  // namespace

InprocNetwork::InprocNetwork(Loop* loop) : state_(std::make_shared<State>()) { state_->loop = loop; }

InprocNetwork::~InprocNetwork() = default;

std::unique_ptr<Listener> InprocNetwork::listen(const std::string& name, Acceptor& acceptor) {
  DOWNPOUR_CHECK(state_->acceptors.emplace(name, &acceptor).second, "somebody listens at ", name, " (inproc) already");
  return std::make_unique<InprocListener>(name, [state = state_, name] { state->acceptors.erase(name); });
}

std::unique_ptr<Connection> InprocNetwork::connect(const std::string& name, const Hello& hello, Receiver& receiver,
                                                   const ConnectOptions& options) {
  const std::vector<std::byte> body = encode(hello);
  auto link = std::make_shared<Link>();
  link->name = name;
  auto connector = std::make_unique<InprocConnector>(state_->loop, link, hello, receiver, options);
  link->send(kToAcceptor, FrameType::kHello, body);
  state_->links.push_back(std::move(link));
  return connector;
}

int InprocNetwork::links() const { return static_cast<int>(state_->links.size()); }

int InprocNetwork::waiting(int link, int direction) const { return state_->lane(link, direction).waiting(); }

bool InprocNetwork::deliver(int link, int direction) { return state_->deliver(link, direction); }

int InprocNetwork::deliver_all() {
  int delivered = 0;
  for (bool any = true; std::exchange(any, false);) {
    for (int link = 0; link < links(); ++link) {
      for (const int direction : {0, 1}) {
        while (!state_->lane(link, direction).is_held && deliver(link, direction)) {
          ++delivered;
          any = true;
        }
      }
    }
  }
  return delivered;
}

void InprocNetwork::cut(int link) {
  state_->lane(link, 0);
  const std::shared_ptr<Link> kept = state_->links[static_cast<std::size_t>(link)];
  state_->cut(*kept);
}

void InprocNetwork::cut_after(int link, int direction, std::uint64_t bytes) {
  state_->lane(link, direction).bytes_until_cut = bytes;
  if (bytes == 0) {
    cut(link);
  }
}

void InprocNetwork::hold(int link, int direction) { state_->lane(link, direction).is_held = true; }

void InprocNetwork::release(int link, int direction) { state_->lane(link, direction).is_held = false; }

void InprocNetwork::refuse(const std::string& name) { state_->refused.insert(name); }

void InprocNetwork::accept_again(const std::string& name) { state_->refused.erase(name); }

}  // namespace downpour::transport
