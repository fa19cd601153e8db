#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace downpour {

class DownpourSGD;

struct SamplesOptions {
  TORCH_ARG(int64_t, batch_size) = 64;
  TORCH_ARG(int64_t, epochs) = 1;
  TORCH_ARG(uint64_t, seed) = 0;  // the order of every epoch follows from it
  TORCH_ARG(bool, shuffle) = true;
};

// The samples of a data set dealt out to the workers, epoch by epoch: every sample is used exactly once an epoch, whichever
// worker gets it and also when workers die. A lease is the samples of one push (n_push batches); a dead worker's leases go to
// others, and a part of the model that has seen one ignores it the second time. A push that is dropped, too old or not finite,
// is counted and its samples are not dealt again. Under servers a restarted program goes on where the job is, alone it begins
// anew. Not covered: what only a worker and a server had that die together in the last moments of finish().
// To accumulate, split one batch, or use n_push.
// Threads: the training loop's. Blocks: next() at most the optimizer's call_deadline, or while other workers make progress on
// the last leases.
class Samples {
 public:
  // `size`: samples in the data set, >= 1; the optimizer outlives it.
  // Errors: c10::Error, e.g. when another worker's program names another size.
  Samples(DownpourSGD& optimizer, int64_t size, SamplesOptions options = {});
  ~Samples();

  struct Batch {
    torch::Tensor indices;  // int64 [b], 1 <= b <= batch_size, on the CPU
    int64_t epoch = 0;      // from 0
  };
  // nullopt when all epochs are done. Each batch must be followed by its step() before the next one is asked for.
  std::optional<Batch> next();

  int64_t epoch() const;  // of the batch given last; 0 before the first

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace downpour
