#include "csrc/collective/link.h"

#include <utility>

#include "csrc/base/error.h"
#include "csrc/transport/frame.h"

namespace downpour::collective {
namespace {

enum Type : std::uint16_t { kPiece = transport::kFirstUserType, kReturned, kAbort };

template <typename Enum>
Enum get_enum(Reader& reader, Enum last, const char* what) {
  const auto value = reader.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, value >= 1 && value <= static_cast<std::uint8_t>(last), "a piece of ", what, " ",
                    int{value}, ", expected 1 to ", int{static_cast<std::uint8_t>(last)});
  return static_cast<Enum>(value);
}

}  // namespace

void encode(const PieceHeader& header, Writer& writer) {
  writer.put(header.number).put(static_cast<std::uint8_t>(header.shape.op));
  writer.put(static_cast<std::uint8_t>(header.shape.type)).put(static_cast<std::uint8_t>(header.shape.reduce));
  writer.put(header.shape.root).put(header.shape.count);
}

PieceHeader decode_piece(Bytes body) {
  Reader reader(body, "piece");
  PieceHeader header;
  header.number = reader.get<std::uint64_t>();
  header.shape.op = get_enum(reader, kLastOp, "operation");
  header.shape.type = get_enum(reader, kLastElementType, "element type");
  header.shape.reduce = get_enum(reader, kLastReduceOp, "reduction");
  header.shape.root = reader.get<std::int32_t>();
  header.shape.count = reader.get<std::int64_t>();
  reader.finish();
  return header;
}

void Link::accept(std::unique_ptr<transport::Connection> connection) {
  connection_ = std::move(connection);
  open_ = true;
}

void Link::connect(std::unique_ptr<transport::Connection> connection) { connection_ = std::move(connection); }

void Link::close() {
  open_ = false;
  connection_.reset();
}

bool Link::has_room(Lane lane) const {
  const Flow& flow = flows_[static_cast<int>(lane)];
  return is_usable() && flow.put - flow.returned < kPiecesOnTheWay;
}

std::uint64_t Link::next_offset(Lane lane) {
  const std::uint64_t slot = static_cast<std::uint64_t>(lane) * kPiecesOnTheWay + flow(lane).put++ % kPiecesOnTheWay;
  return slot * kPieceBytes;
}

void Link::put_piece(const PieceHeader& header, Bytes bytes) {
  writer_.clear();
  encode(header, writer_);
  connection_->put(kPiece, writer_.bytes(), bytes, next_offset(Lane::kCalls), transport::Credit::kNone);
}

void Link::keep_pieces() {
  if (is_usable()) {
    connection_->keep_bulk();
  }
}

void Link::pop() {
  pieces_.pop_front();
  give_back(Lane::kCalls);
}

void Link::send(std::uint16_t type, Bytes body) {
  if (is_usable()) {
    connection_->send(type, body);
  }
}

void Link::put(std::uint16_t type, Bytes body, Bytes bulk) {
  connection_->put(type, body, bulk, next_offset(Lane::kMessages), transport::Credit::kNone);
}

void Link::take_back() { give_back(Lane::kMessages); }

void Link::give_back(Lane lane) {
  const auto value = static_cast<std::uint8_t>(lane);
  send(kReturned, std::as_bytes(std::span(&value, 1)));
}

void Link::abort(std::string_view reason) { send(kAbort, as_bytes(reason.substr(0, kLongestReason))); }

void Link::on_open(transport::Connection&, const transport::Welcome&) {
  open_ = true;
  owner_.on_link_open(*this);
}

void Link::on_message(transport::Connection&, const transport::Message& message) {
  switch (message.type) {
    case kPiece: on_piece(message); break;
    case kReturned: on_returned(message.body); break;
    case kAbort:
      owner_.on_abort(*this, {reinterpret_cast<const char*>(message.body.data()), message.body.size()});
      break;
    default: owner_.on_message(*this, message.type, message.body, message.bulk);
  }
}

void Link::on_piece(const transport::Message& message) {
  DOWNPOUR_CHECK_AS(ProtocolError, pieces_.size() < kPiecesOnTheWay, "more than ", kPiecesOnTheWay,
                    " pieces on their way at once");
  pieces_.push_back({decode_piece(message.body), message.bulk});
  owner_.on_pieces(*this);
}

void Link::on_returned(Bytes body) {
  Reader reader(body, "returned piece");
  const auto lane = reader.get<std::uint8_t>();
  reader.finish();
  DOWNPOUR_CHECK_AS(ProtocolError, lane < kLanes, "a piece returned on lane ", int{lane});
  Flow& returned = flow(static_cast<Lane>(lane));
  DOWNPOUR_CHECK_AS(ProtocolError, returned.returned < returned.put, "a piece returned that was never put");
  ++returned.returned;
  owner_.on_pieces(*this);
}

void Link::on_closed(transport::Connection&, std::exception_ptr why) {
  open_ = false;
  left_ = why == nullptr;
  if (left_) {
    owner_.on_link_left(*this);
  } else {
    owner_.on_link_lost(*this, std::move(why));
  }
}

}  // namespace downpour::collective
