#pragma once

#include <torch/arg.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace downpour {

// What happens to floating-point buffers (BatchNorm's running statistics); integer buffers are always local.
enum class BufferPolicy {
  kLocal,  // each worker's own, anew when it is restarted. Said once in the log when a module has such buffers
  kShared,  // they live on the servers: every push adds this worker's change / world size, every pull adopts the sum. The
  // change is part of the push: where that is dropped (too old, not finite) it is lost too, and not sent again
};

// How DownpourSGD talks to the parameter servers. The torch options beside it (SGDOptions, AdagradOptions, AdamOptions,
// AdamWOptions) choose the update rule that the servers run. Source: Dean et al. 2012, section 4.1.
// Errors: DownpourSGD's constructor throws c10::Error for a value out of its range and names it.
struct DownpourOptions {
  // ---- behaviour
  TORCH_ARG(int64_t, n_push) = 1;   // steps whose gradients are summed into one push
  TORCH_ARG(int64_t, n_fetch) = 1;  // steps between two pulls
  // p -= local_lr * grad at steps that do not end with a pull, with prefetch at all; 0: parameters wait for the pull
  TORCH_ARG(double, local_lr) = 0;
  TORCH_ARG(int64_t, warm_start_steps) = 0;  // worker 0 makes so many alone first; not with warm_up_steps
  // So many first steps are synchronous: all push, the mean over the workers counts, then all pull the same version.
  TORCH_ARG(int64_t, warm_up_steps) = 0;
  TORCH_ARG(std::optional<int64_t>, max_staleness) = std::nullopt;  // updates; older pushes are dropped and counted
  TORCH_ARG(std::optional<int64_t>, max_lead) = std::nullopt;  // steps ahead of the slowest worker (SSP); then it waits
  TORCH_ARG(BufferPolicy, buffers) = BufferPolicy::kLocal;
  // ---- speed
  TORCH_ARG(bool, overlap) = false;      // gradients leave from hooks while backward runs; see DownpourSGD
  TORCH_ARG(bool, prefetch) = false;     // the pull overlaps the next forward: one more step of staleness
  TORCH_ARG(double, max_grad_norm) = 0;  // exact global-norm clipping of each push (works with overlap); 0: none
  // Pushes are kept until a snapshot covers them; there is room for four at least, over shared memory for 1 GiB a
  // server at most.
  TORCH_ARG(int64_t, replay_budget_bytes) = int64_t{256} << 20;
  // ---- trouble
  // No wait for a server or the launcher takes longer; a wait for other workers, or for servers that load their
  // snapshots, goes on as long as these make progress.
  TORCH_ARG(std::chrono::milliseconds, call_deadline) = std::chrono::seconds(60);
};

}  // namespace downpour
