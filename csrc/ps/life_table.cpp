#include "csrc/ps/life_table.h"

#include "csrc/base/error.h"
#include "csrc/transport/handshake.h"

namespace downpour::ps {

std::optional<std::string> LifeTable::enter(int worker, Life life) {
  const std::lock_guard lock(mutex_);
  Life& newest = newest_[worker];
  if (life.incarnation < newest.incarnation) {
    return concat(kFencedPrefix, "incarnation ", life.incarnation, " of worker ", worker, " is over, its incarnation ",
                  newest.incarnation, " has begun");
  }
  if (life == newest) {  // knocks again, since the link broke before it heard the welcome
    return concat(transport::kLaterPrefix, "this connection of worker ", worker, " was let in before");
  }
  if (life < newest) {
    return concat("a newer connection of worker ", worker, " is open");
  }
  newest = life;
  ++changes_;
  return std::nullopt;
}

void LifeTable::fence(const Fence& fence) {
  const std::lock_guard lock(mutex_);
  Life& newest = newest_[fence.worker];
  if (newest.incarnation < fence.below_incarnation) {
    newest = {fence.below_incarnation, 0};
    ++changes_;
  }
}

bool LifeTable::is_live(int worker, Life life) const {
  const std::lock_guard lock(mutex_);
  const auto newest = newest_.find(worker);
  return newest != newest_.end() && newest->second == life;
}

}  // namespace downpour::ps
