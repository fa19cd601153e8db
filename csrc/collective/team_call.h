#pragma once

#include <cstdint>
#include <vector>

#include "csrc/collective/call.h"
#include "csrc/collective/team.h"

namespace downpour::collective {

// Memory that all members of a team map, for tensors that are reduced where they lie: a part for each member, which only its
// member writes outside of calls. A value; owns nothing.
struct Arena {
  std::int32_t id = 0;              // its place among a team's arenas
  std::vector<MutableBytes> parts;  // in the order of members, of one size
};

// Does one checked call among the members of a team; `call`'s pieces and root count members, not ranks. What members compare is the
// attempt's shape, that of the group's call of which this one may be a part. The reduction of an element
// is formed in the order of members, once, or on every member in the same order.
// `arenas`: an all-reduce of a tensor that lies at the same place of the same arena on every member moves nothing: each member
// reduces its share in all parts.
// Threads, Blocks: as Team::meet. Errors: what meet() throws; Error when the members call different things: every member hears of it
// before any memory of a call was changed, and the team may be used again.
void run_call(Team& team, const std::vector<Arena>& arenas, const Call& call, const Attempt& attempt);

}  // namespace downpour::collective
