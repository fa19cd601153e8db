#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "csrc/collective/call.h"
#include "csrc/transport/connection.h"

namespace downpour::collective {

// What a piece of a collective call says of itself: a rank that is in another call notices at the first piece.
struct PieceHeader {
  std::uint64_t number = 0;  // of the call in its group
  CallShape shape;
  bool operator==(const PieceHeader&) const = default;
};
void encode(const PieceHeader& header, Writer& writer);
PieceHeader decode_piece(Bytes body);  // Errors: ProtocolError

// Two classes of bulk bytes share a connection; neither waits for the other: pieces of collective calls, in order, and those of
// messages that ranks send one another. Each has its slots in the window, counted apart.
enum class Lane : std::uint8_t { kCalls = 0, kMessages = 1 };
inline constexpr int kLanes = 2;
inline constexpr std::int64_t kPieceBytes = 256 * 1024;  // a multiple of every element's size
inline constexpr int kPiecesOnTheWay = 4;                // of a lane
inline constexpr std::uint64_t kWindowBytes = kLanes * kPiecesOnTheWay * kPieceBytes;

// Types of the lane kMessages begin here.
inline constexpr std::uint16_t kFirstMessageType = 80;
inline constexpr std::size_t kLongestReason = 8 * 1024;

class Link;

// Whoever has links. Threads: called on the thread of the connection's loop; may use the link, not destroy it.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual void on_link_open(Link& link) = 0;
  virtual void on_pieces(Link& link) = 0;  // there are new ones, or room for more
  // A message of the lane kMessages; what is in `bulk` stays until take_back().
  virtual void on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) = 0;
  virtual void on_abort(Link& link, std::string_view reason) = 0;  // the peer's: its last word
  virtual void on_link_left(Link& link) = 0;  // the peer ended its group: what it has sent is still there
  virtual void on_link_lost(Link& link, std::exception_ptr why) = 0;
};

// One rank's link to another: pieces of calls in order, small messages, bulk under flow control.
// Threads: that of its loop. Blocks: never. Errors: once the link is lost what is sent is dropped, and the owner has heard why.
class Link final : public transport::Receiver {
 public:
  Link(int peer, LinkOwner& owner) : peer_(peer), owner_(owner) {}

  void accept(std::unique_ptr<transport::Connection> connection);   // it is open
  void connect(std::unique_ptr<transport::Connection> connection);  // on_link_open() follows, or on_link_lost()
  void close();
  bool is_open() const { return open_; }
  bool has_left() const { return left_; }
  int peer() const { return peer_; }
  transport::Connection* connection() const { return connection_.get(); }

  // ---- the lane kCalls ---------------------------------------------------------------------------------------------------
  bool has_room(Lane lane = Lane::kCalls) const;
  // At most kPieceBytes, which must not change until the peer has taken them or keep_pieces(). Needs room.
  void put_piece(const PieceHeader& header, Bytes bytes);
  void keep_pieces();  // copies what is still to be sent: the memory it lies in may change now
  struct Piece {
    PieceHeader header;
    Bytes bytes;
  };
  const Piece* front() const { return pieces_.empty() ? nullptr : &pieces_.front(); }
  void pop();  // its place may be written again

  // ---- the lane kMessages --------------------------------------------------------------------------------------------------
  void send(std::uint16_t type, Bytes body);
  void put(std::uint16_t type, Bytes body, Bytes bulk);  // as put_piece
  void take_back();  // the bulk of the message that came first and was not taken back yet

  void abort(std::string_view reason);  // the peer's owner hears it

  void on_open(transport::Connection& connection, const transport::Welcome& welcome) override;
  void on_message(transport::Connection& connection, const transport::Message& message) override;
  void on_closed(transport::Connection& connection, std::exception_ptr why) override;

 private:
  struct Flow {
    std::uint64_t put = 0;       // that we have put, ever
    std::uint64_t returned = 0;  // of those, that the peer is done with
  };
  Flow& flow(Lane lane) { return flows_[static_cast<int>(lane)]; }
  std::uint64_t next_offset(Lane lane);
  bool is_usable() const { return open_ && connection_ != nullptr; }
  void give_back(Lane lane);
  void on_piece(const transport::Message& message);
  void on_returned(Bytes body);

  int peer_;
  LinkOwner& owner_;
  std::unique_ptr<transport::Connection> connection_;
  bool open_ = false;
  bool left_ = false;
  Flow flows_[kLanes];
  std::deque<Piece> pieces_;
  Writer writer_;
};

}  // namespace downpour::collective
