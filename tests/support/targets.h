#pragma once

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>

namespace downpour {

// Runs `body(fused, name)` once for every instruction set of this machine that Highway would choose from; `fused`:
// whether its multiply-add rounds once.
template <typename Body>
void for_each_target(const Body& body) {
  constexpr std::int64_t kUnfused = HWY_SSE4 | HWY_SSSE3 | HWY_SCALAR | HWY_EMU128;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body((target & kUnfused) == 0, hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace downpour
