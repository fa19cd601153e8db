#include "csrc/transport/inproc_link.h"

#include <algorithm>
#include <utility>

namespace downpour::transport {

Parcel& Lane::push() {
  Parcel parcel;
  if (!spare_.empty()) {
    parcel = std::move(spare_.back());
    spare_.pop_back();
  }
  if (first_ > 0 && parcels_.size() == parcels_.capacity()) {
    parcels_.erase(parcels_.begin(), parcels_.begin() + static_cast<std::ptrdiff_t>(first_));
    kept_ -= std::min(kept_, first_);
    first_ = 0;
  }
  return parcels_.emplace_back(std::move(parcel));
}

Parcel Lane::pop() {
  Parcel parcel = std::move(parcels_[first_++]);
  if (waiting() == 0) {
    clear();
  }
  return parcel;
}

void Lane::recycle(Parcel parcel) {
  parcel.small.clear();
  parcel.bulk = {};
  parcel.kept_bulk.clear();
  spare_.push_back(std::move(parcel));
}

void Lane::keep_bulk() {
  for (kept_ = std::max(kept_, first_); kept_ < parcels_.size(); ++kept_) {
    Parcel& parcel = parcels_[kept_];
    parcel.kept_bulk.assign(parcel.bulk.begin(), parcel.bulk.end());
    parcel.bulk = parcel.kept_bulk;
  }
}

void Lane::clear() {
  parcels_.clear();
  first_ = kept_ = 0;
}

void Link::send(std::size_t direction, FrameType type, Bytes body) {
  lanes[direction].push().small = handshake_frame(type, body);
}

void Link::break_off(std::size_t direction) {
  leave(direction);
  if (ends[1 - direction] != nullptr) {
    lanes[1 - direction].push().small.clear();
  }
}

void Link::leave(std::size_t direction) {
  ends[direction] = nullptr;
  lanes[direction].clear();
  lanes[1 - direction].keep_bulk();
}

}  // namespace downpour::transport
