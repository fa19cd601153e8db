#include "csrc/transport/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

constexpr std::size_t kBufferBytes = 16 * 1024;  // many small frames in one read; little to copy when bulk bytes follow

}  // namespace

FrameReader::FrameReader(const FrameLimits& limits, MutableBytes window)
    : limits_(limits), window_(window), buffer_(kBufferBytes) {}

const FrameReader::Frame* FrameReader::next() {
  if (stage_ == Stage::kDone) {
    drop_frame();
  }
  if ((stage_ != Stage::kHeader || read_header()) && (stage_ != Stage::kBody || read_body()) && read_bulk()) {
    return &frame_;
  }
  return nullptr;
}

void FrameReader::drop_frame() {
  begin_ += kFrameHeaderBytes + frame_.header.body_bytes;
  if (begin_ == end_) {
    begin_ = end_ = 0;
  }
  stage_ = Stage::kHeader;
}

bool FrameReader::read_header() {
  if (buffered() < kFrameHeaderBytes) {
    return false;
  }
  const auto bytes = std::span<const std::byte>(buffer_).subspan(begin_).first<kFrameHeaderBytes>();
  frame_.header = decode_header(bytes, limits_);
  stage_ = Stage::kBody;
  return true;
}

bool FrameReader::read_body() {
  const std::size_t small_bytes = kFrameHeaderBytes + frame_.header.body_bytes;
  if (buffered() < small_bytes) {
    make_room(small_bytes);
    return false;
  }
  // Bulk bytes that came along with the body move to the window; what follows them closes up to the body.
  const std::size_t behind = buffered() - small_bytes;
  bulk_done_ = std::min<std::uint64_t>(behind, frame_.header.bulk_bytes);
  if (bulk_done_ > 0) {
    std::byte* bulk = buffer_.data() + begin_ + small_bytes;
    std::memcpy(window_.data() + frame_.header.bulk_offset, bulk, bulk_done_);
    std::memmove(bulk, bulk + bulk_done_, behind - bulk_done_);
    end_ -= bulk_done_;
  }
  stage_ = Stage::kBulk;
  return true;
}

bool FrameReader::read_bulk() {
  if (bulk_done_ < frame_.header.bulk_bytes) {
    return false;
  }
  frame_.body = Bytes(buffer_).subspan(begin_ + kFrameHeaderBytes, frame_.header.body_bytes);
  stage_ = Stage::kDone;
  return true;
}

void FrameReader::make_room(std::size_t bytes_from_begin) {
  if (begin_ > 0) {  // what is left is less than a frame
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  if (bytes_from_begin > buffer_.size()) {
    buffer_.resize(bytes_from_begin);
  }
}

FrameReader::Space FrameReader::space() {
  Space space;
  const auto add = [&space](std::byte* begin, std::size_t bytes) {
    if (bytes > 0) {
      space.parts[static_cast<std::size_t>(space.count++)] = {begin, bytes};
      space.bytes += bytes;
    }
  };
  if (stage_ == Stage::kBulk) {
    add(window_.data() + frame_.header.bulk_offset + bulk_done_, frame_.header.bulk_bytes - bulk_done_);
  } else {
    make_room(kFrameHeaderBytes + (stage_ == Stage::kBody ? frame_.header.body_bytes : 0));
  }
  add(buffer_.data() + end_, buffer_.size() - end_);
  return space;
}

void FrameReader::filled(std::size_t bytes) {
  if (stage_ == Stage::kBulk) {
    const std::size_t of_bulk = std::min<std::uint64_t>(bytes, frame_.header.bulk_bytes - bulk_done_);
    bulk_done_ += of_bulk;
    bytes -= of_bulk;
  }
  DOWNPOUR_INTERNAL_ASSERT(bytes <= buffer_.size() - end_, "more bytes filled than there was space for");
  end_ += bytes;
}

}  // namespace downpour::transport
